"""What Redis and the machine add to any delta: XADD in one task, XREAD in another, that is all.

python -m tests.bench.bare_stream DELAYS REDIS_URL: ends with SIGTERM, then writes DELAYS, a JSON
list of milliseconds.
"""

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

from redis.asyncio import Redis

KEY = "bare"
PERIOD_S = 0.025


async def measured(redis_url: str) -> list[float]:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    delays_ms: list[float] = []
    async with Redis.from_url(redis_url) as redis:

        async def write() -> None:
            while not ended.is_set():
                await redis.xadd(KEY, {b"ns": str(time.monotonic_ns())}, maxlen=100)
                await asyncio.sleep(PERIOD_S)

        async def read() -> None:
            cursor = b"0-0"
            while not ended.is_set():
                for _, entries in await redis.xread({KEY: cursor}, block=100):
                    for identifier, fields in entries:
                        cursor = identifier
                        delays_ms.append((time.monotonic_ns() - int(fields[b"ns"])) / 1e6)

        await asyncio.gather(read(), write())
    return delays_ms


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(asyncio.run(measured(sys.argv[2]))))
