"""The replicas' tokenizers, so that text means the same tokens here as there."""

import asyncio
import logging
import random
from collections import defaultdict
from weakref import WeakValueDictionary

from grpc import aio

from proto.errors import InvalidModel
from proto.text import TextCodec
from router.backoff import pauses
from router.replica_state import ReplicaState, failure

log = logging.getLogger(__name__)


class Tokenizers:
    """Fetches each tokenizer once, by digest; it stays for as long as a replica of it does."""

    def __init__(self, *, rng: random.Random) -> None:
        self._rng = rng
        self._codecs: WeakValueDictionary[bytes, TextCodec] = WeakValueDictionary()
        self._fetching: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def provide(self, state: ReplicaState) -> None:
        """Set `state.codec`, from what is here or from the replica, asked until it answers."""
        digest = state.lease.tokenizer_digest
        if not digest:
            return  # it takes token ids only
        for pause_s in pauses(self._rng):
            try:
                async with self._fetching[digest]:
                    codec = self._codecs.get(digest) or await _fetch(state)
                    self._codecs[digest] = state.codec = codec
                return
            except (aio.AioRpcError, InvalidModel) as error:
                log.warning("no tokenizer yet replica=%s error=%s", state.id, failure(error))
            await asyncio.sleep(pause_s)


async def _fetch(state: ReplicaState) -> TextCodec:
    """Raises AioRpcError, or InvalidModel if what came is no tokenizer or not the announced one."""
    pieces: list[bytes] = []
    async for part in state.tokenizer():
        if part.HasField("rules"):
            codec = await asyncio.to_thread(TextCodec, b"".join(pieces), part.rules)
            if (digest := codec.digest()) != state.lease.tokenizer_digest:
                raise InvalidModel(
                    f"tokenizer digest {digest.hex()}, "
                    f"announced {state.lease.tokenizer_digest.hex()}"
                )
            log.info("tokenizer fetched replica=%s digest=%s", state.id, digest.hex()[:12])
            return codec
        pieces.append(part.tokenizer_json)
    raise InvalidModel("tokenizer stream ended before its rules")
