"""A router that writes down when its mirrors had each batch.

python -m tests.bench.timed_router TIMES REPLICAS [FLAG ...]: begins when it mirrors that many, and
writes TIMES, a JSON object by replica, when it is ended by SIGTERM.
"""

import asyncio
import json
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from proto.secret import read_hash_secret
from radix_rs import derive_hash_key
from router.mirror import MirrorState
from router.process import running
from router.settings import read_settings


async def seen(replicas: int, flags: list[str]) -> dict[str, list[tuple[int, str]]]:
    """Batches of each replica as its mirror had them, with the time in ns."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    settings = read_settings(flags)
    hash_key = derive_hash_key(read_hash_secret(settings.hash_secret_file))
    had: dict[str, list[tuple[int, bytes]]] = {}
    async with running(settings, hash_key) as router:
        members = router.parts.fleet.members
        while [m.mirror.state for m in members.values()].count(MirrorState.STREAMING) < replicas:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        with ExitStack() as following:
            for name, member in members.items():
                batches = had.setdefault(name, [])

                def note(batch: bytes, batches: list[tuple[int, bytes]] = batches) -> None:
                    batches.append((time.monotonic_ns(), batch))

                following.enter_context(member.mirror.followed(note))
            await ended.wait()
    return {name: [(at, batch.hex()) for at, batch in each] for name, each in had.items()}


if __name__ == "__main__":
    times = asyncio.run(seen(int(sys.argv[2]), sys.argv[3:]))
    Path(sys.argv[1]).write_text(json.dumps(times))
