"""The replicas' tokenizers, so that text means the same tokens here as there."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from grpc import aio

from proto.errors import InvalidModel
from proto.text import TextCodec
from radix_rs import TextCodec as CompiledCodec
from router.backoff import pauses
from router.compiled_text import compiled
from router.replica_channel import failure
from router.replica_state import ReplicaState

log = logging.getLogger(__name__)


class ModelTokenizer(NamedTuple):
    """What makes tokens of text; they are for replicas of its digest only."""

    digest: bytes
    codec: TextCodec


class Tokenizers:
    """Fetches each tokenizer once, by digest; it stays for as long as a replica of it does.

    One serves each model: that of most of its replicas. Those with another tokenizer or chat
    template, as in the middle of an update, take text as it is.
    """

    def __init__(
        self, *, set_text: Callable[[str, bytes, CompiledCodec | None], None], rng: random.Random
    ) -> None:
        """`set_text` tells the data plane a model's tokenizer with its digest, or that none is."""
        self._set_text = set_text
        self._rng = rng
        self._compiled: WeakKeyDictionary[TextCodec, CompiledCodec | None] = WeakKeyDictionary()
        self._codecs: WeakValueDictionary[bytes, TextCodec] = WeakValueDictionary()
        self._fetching: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._chosen: dict[str, bytes] = {}
        """Digests by model."""
        self._missing: set[str] = set()
        """Models whose last text had to go as it is."""

    def of_model(self, model: str) -> ModelTokenizer | None:
        """None, with a line when so, while it is not here or if no replica of the model has one."""
        tokenizer = self._find(model)
        if tokenizer is None and model not in self._missing:
            self._missing.add(model)
            log.warning(
                "text goes untokenised, so that its prefixes are not seen: no tokenizer is here"
                " model=%s",
                model,
            )
        return tokenizer

    def choose(self, model: str, states: Sequence[ReplicaState]) -> None:
        """Choose for the replicas of a model, the same as every router that sees them."""
        replicas = Counter(digest for s in states if (digest := s.lease.tokenizer_digest))
        chosen = min(replicas, key=lambda digest: (-replicas[digest], digest), default=b"")
        if chosen:
            self._chosen[model] = chosen
        else:
            self._chosen.pop(model, None)
        for state in states:
            differs = state.lease.tokenizer_digest != chosen
            if differs and not state.other_tokenizer:
                log.warning(
                    "another tokenizer or chat template than its model's: text reaches it"
                    " untokenised replica=%s model=%s digest=%s chosen=%s",
                    *(state.id, model, _short(state.lease.tokenizer_digest), _short(chosen)),
                )
            state.other_tokenizer = differs
        self._tell(model)

    async def provide(self, state: ReplicaState) -> None:
        """Set `state.codec`, from what is here or from the replica, asked until it answers."""
        digest = state.lease.tokenizer_digest
        if not digest:
            return  # it takes token ids only
        lock = self._fetching.setdefault(digest, asyncio.Lock())
        told = ""
        for pause_s in pauses(self._rng):
            try:
                async with lock:
                    codec = self._codecs.get(digest) or await _fetch(state)
                    if codec not in self._compiled:
                        self._compiled[codec] = await asyncio.to_thread(compiled, codec)
                    self._codecs[digest] = state.codec = codec
                self._tell(state.lease.model)
                return
            except (aio.AioRpcError, InvalidModel) as error:
                if (why := failure(error)) != told:
                    log.warning("no tokenizer yet replica=%s why=%r", state.id, why)
                    told = why
            await asyncio.sleep(pause_s)

    def _find(self, model: str) -> ModelTokenizer | None:
        digest = self._chosen.get(model, b"")
        codec = self._codecs.get(digest)
        return ModelTokenizer(digest, codec) if codec is not None else None

    def _tell(self, model: str) -> None:
        tokenizer = self._find(model)
        if tokenizer is None:
            self._set_text(model, b"", None)
            return
        self._set_text(model, tokenizer.digest, self._compiled.get(tokenizer.codec))
        if model in self._missing:
            self._missing.remove(model)
            log.info("text is tokenised again model=%s", model)


async def _fetch(state: ReplicaState) -> TextCodec:
    """Raises AioRpcError, or InvalidModel if what came is no tokenizer or not the announced one."""
    pieces: list[bytes] = []
    async with aclosing(state.tokenizer()) as parts:
        async for part in parts:
            if part.HasField("rules"):
                break
            pieces.append(part.tokenizer_json)
        else:
            raise InvalidModel("tokenizer stream ended before its rules")
    codec = await asyncio.to_thread(TextCodec, b"".join(pieces), part.rules)
    if (digest := codec.digest()) != state.lease.tokenizer_digest:
        raise InvalidModel(
            f"tokenizer digest {digest.hex()}, announced {state.lease.tokenizer_digest.hex()}"
        )
    log.info("tokenizer fetched replica=%s digest=%s", state.id, _short(digest))
    return codec


def _short(digest: bytes) -> str:
    return digest.hex()[:12]
