"""Tokenising beside a running event loop."""

import asyncio
from array import array
from concurrent.futures import ThreadPoolExecutor

from proto.limits import prompt_characters
from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from proto.text import TextCodec

LONG_CHARACTERS = 2**15
"""From here on tokenising takes tens of milliseconds."""

THREADS = 2
"""One for the long prompt whose turn it is, one that stays free for short ones."""


class Tokenising:
    """Threads of its own do the work; long prompts take turns, so that short ones find one free."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenising")

    async def ids(self, codec: TextCodec, request: GenerateRequest) -> "array[int]":
        """Token ids (u32) of the prompt. Raises InvalidRequest."""
        if request.HasField("tokens"):
            return codec.prompt_ids(request)
        if prompt_characters(request) < LONG_CHARACTERS:
            return await self._apart(codec, request)
        async with self._turn:
            return await self._apart(codec, request)

    async def _apart(self, codec: TextCodec, request: GenerateRequest) -> "array[int]":
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, codec.prompt_ids, request)
