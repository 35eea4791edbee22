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
from functools import partial
from pathlib import Path

from proto.secret import read_hash_secret
from radix_rs import derive_hash_key
from router.mirror import MirrorState
from router.process import running
from router.settings import read_settings
from router.subscriber import Stream
from tests.bench.delta_path import Arrival


async def seen(replicas: int, flags: list[str]) -> dict[str, list[Arrival]]:
    """Batches of each replica as its mirror had them."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    settings = read_settings(flags)
    hash_key = derive_hash_key(read_hash_secret(settings.hash_secret_file))
    had: dict[str, list[Arrival]] = {}
    async with running(settings, hash_key) as router:
        members = router.parts.fleet.members
        while [m.mirror.state for m in members.values()].count(MirrorState.STREAMING) < replicas:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        with ExitStack() as following:
            for name, member in members.items():
                batches = had.setdefault(name, [])
                stream = router.parts.subscriber.stream(name)
                following.enter_context(member.mirror.followed(partial(_note, batches, stream)))
            await ended.wait()
    return had


def _note(arrivals: list[Arrival], stream: Stream, batch: bytes) -> None:
    applied_ns = time.monotonic_ns()
    since_boot_ns = time.time_ns() - applied_ns
    assert stream.cursor is not None  # the batch's own id
    in_redis_ns = int(stream.cursor.partition("-")[0]) * 1_000_000 - since_boot_ns
    arrivals.append(Arrival(in_redis_ns, int(stream.heard_s * 1e9), applied_ns, batch))


if __name__ == "__main__":
    arrivals = asyncio.run(seen(int(sys.argv[2]), sys.argv[3:]))
    times = {
        name: [(*each[:3], each.batch.hex()) for each in found] for name, found in arrivals.items()
    }
    Path(sys.argv[1]).write_text(json.dumps(times))
