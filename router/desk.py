"""What the data plane leaves to the rest: prompts it cannot read itself, and what it noticed."""

import asyncio
import logging
from functools import partial

import grpc
from google.protobuf.message import DecodeError

from proto.errors import InvalidRequest, LBError
from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from radix_rs import Plane
from router.fleet import Fleet
from router.prompt import PromptReader

log = logging.getLogger(__name__)

METHOD = "/prefixlb.v1.Inference/Generate"


class Desk:
    """Answers the data plane, from `open` on, until `close`."""

    def __init__(self, plane: Plane, *, fleet: Fleet, prompts: PromptReader) -> None:
        self._plane = plane
        self._fleet = fleet
        self._prompts = prompts
        self._reading: dict[int, asyncio.Task[None]] = {}
        """By ask."""

    def open(self) -> None:
        asyncio.get_running_loop().add_reader(self._plane.news_fd, self._take)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._plane.news_fd)
        for task in self._reading.values():
            task.cancel()

    def _take(self) -> None:
        news = self._plane.take_news()
        for replica, serial, why in news.suspects:
            self._fleet.failed(replica, serial, why)
        for replica, state, why in news.breakers:
            log.warning("breaker replica=%s is=%s why=%r", replica, state, why)
        for request_id, why in news.retries:
            log.warning("retry request=%r why=%r", request_id, why)
        for ask, message in news.asks:
            self._reading[ask] = task = asyncio.create_task(self._read(ask, message))
            task.add_done_callback(partial(self._done, ask))
        for ask in news.given_up:
            if (reading := self._reading.get(ask)) is not None:
                reading.cancel()

    async def _read(self, ask: int, message: bytes) -> None:
        try:
            prompt = await self._prompts.read(_parsed(message))
        except LBError as error:
            self._plane.refuse(ask, error.code.value[0], str(error))
        except Exception as error:
            # The data plane counts it. The words stay here: they may be a prompt's.
            log.error("prompt could not be read error=%s", type(error).__name__)
            self._plane.refuse(ask, grpc.StatusCode.UNKNOWN.value[0], "the prompt cannot be read")
        else:
            self._plane.answer(
                ask,
                model=prompt.model,
                tokens=prompt.tokens,
                tokenizer_digest=prompt.tokenizer_digest,
            )

    def _done(self, ask: int, _: asyncio.Task[None]) -> None:
        del self._reading[ask]


def _parsed(message: bytes) -> GenerateRequest:
    try:
        return GenerateRequest.FromString(message)
    except DecodeError as error:
        raise InvalidRequest(f"what came is no request message of {METHOD}") from error
