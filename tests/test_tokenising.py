"""Tokenising beside the event loop, and beside what else the process does on threads."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from proto.tokenising import LONG_CHARACTERS, Tokenising
from tests.tiny_tokenizer import tiny_codec


async def test_it_goes_on_while_the_loops_own_threads_are_all_busy() -> None:
    shared, freed = ThreadPoolExecutor(1), threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(shared)
    busy = loop.run_in_executor(None, freed.wait)
    codec = tiny_codec()
    try:
        async with asyncio.timeout(5.0):
            ids = await Tokenising().ids(codec, GenerateRequest(text="hello"))
        assert ids.tolist() == codec.encode("hello")
    finally:
        freed.set()
        await busy


async def test_a_short_prompt_does_not_wait_for_long_ones() -> None:
    freed = threading.Event()

    class Slow:
        """A codec that takes its time over long texts."""

        def prompt_ids(self, request: GenerateRequest) -> Any:
            if len(request.text) >= LONG_CHARACTERS:
                freed.wait()
            return [len(request.text)]

    slow: Any = Slow()
    tokenising = Tokenising()
    long = GenerateRequest(text="x" * LONG_CHARACTERS)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(tokenising.ids(slow, long)) for _ in range(3)]
        try:
            async with asyncio.timeout(5.0):
                assert await tokenising.ids(slow, GenerateRequest(text="short")) == [5]
            assert not any(task.done() for task in waiting)
        finally:
            freed.set()
