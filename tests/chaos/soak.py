"""Load for an hour from clients good and bad, and what every process holds meanwhile.

python -m tests.chaos.soak                      an hour
python -m tests.chaos.soak --minutes 3 --json   and figures for scripts

Nothing is broken here: two routers and three replicas of a tiny model answer. Beside clients that
behave, others cancel, give up, send garbage and prompts too long or never seen, and reconnect.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from proto.client import AsyncClient
from proto.errors import LBError
from router.cli import console
from router.cli.child import Child
from tests.chaos.campaign import Campaign, campaign
from tests.chaos.recovery import audited, recovered
from tests.tiny_model import VOCAB_SIZE

SAMPLE_S = 5.0
WARM = 0.25
"""The first part of the time, in which caches and allocators fill."""

SLACK_BYTES = 8 << 20
"""By how much the last tenth may be above the first tenth after warming up."""

SLACK_FDS = 16
PAUSE_S = 0.05
GARBAGE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(64)


@dataclass(frozen=True)
class Held:
    """What a process held over the time, a sample each SAMPLE_S."""

    name: str
    rss_bytes: list[int]
    fds: list[int]

    @property
    def is_flat(self) -> bool:
        (start_bytes, end_bytes), (start_fds, end_fds) = ends(self.rss_bytes), ends(self.fds)
        return end_bytes - start_bytes <= SLACK_BYTES and end_fds - start_fds <= SLACK_FDS


def ends(samples: Sequence[int]) -> tuple[float, float]:
    """Medians of the first tenth after warming up and of the last one."""
    warm, tenth = int(len(samples) * WARM), max(1, len(samples) // 10)
    return statistics.median(samples[warm : warm + tenth]), statistics.median(samples[-tenth:])


async def rude(router: Child, rng: random.Random, counts: Counter[str]) -> None:
    """A client that does all that clients should not, until cancelled."""
    while True:
        kind = rng.choice((cancels, gives_up, too_long, never_seen, garbage))
        async with AsyncClient(router.address) as client:
            with suppress(LBError):
                await kind(client, rng)
        counts[kind.__name__.replace("_", " ")] += 1
        await asyncio.sleep(rng.uniform(0, 2 * PAUSE_S))


async def cancels(client: AsyncClient, rng: random.Random) -> None:
    answer = client.generate(_prompt(rng, 64), max_tokens=64, ignore_eos=True)
    async for _ in answer:
        break


async def gives_up(client: AsyncClient, rng: random.Random) -> None:
    await client.complete(_prompt(rng, 64), max_tokens=64, timeout_s=rng.uniform(0.001, 0.05))


async def too_long(client: AsyncClient, rng: random.Random) -> None:
    await client.complete([rng.randrange(VOCAB_SIZE)] * rng.randrange(10_000, 300_000))


async def never_seen(client: AsyncClient, rng: random.Random) -> None:
    await client.complete(_prompt(rng, 200), max_tokens=2, cache_salt=rng.choice(("", "a", "b")))


async def garbage(client: AsyncClient, rng: random.Random) -> None:
    host, port = client.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(GARBAGE[: rng.randrange(1, len(GARBAGE))])
    writer.write_eof()
    with suppress(ConnectionError, TimeoutError):
        await asyncio.wait_for(reader.read(), 1.0)
    writer.close()


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(length)]


async def sampled(processes: Sequence[Child], seconds: float) -> list[Held]:
    """Sample for so long, and say each minute what they hold."""
    out = console.stderr()
    held = [Held(child.name, [], []) for child in processes]
    watched = [psutil.Process(child.pid) for child in processes]
    began_s = told_s = time.monotonic()
    while (now_s := time.monotonic()) < began_s + seconds:
        for process, each in zip(watched, held, strict=True):
            each.rss_bytes.append(process.memory_info().rss)
            each.fds.append(process.num_fds())
        if now_s - told_s >= 60:
            told_s = now_s
            sizes = ", ".join(f"{h.name} {h.rss_bytes[-1] / 2**20:.1f} MiB" for h in held)
            out.print(f"{(now_s - began_s) / 60:.0f} min: {sizes}")
        await asyncio.sleep(SAMPLE_S)
    return held


async def soak(field: Campaign, seconds: float, seed: int) -> tuple[list[Held], Counter[str]]:
    """All of it, and the proof that every mirror equals its tree afterwards."""
    routers, replicas = field.field.routers, field.field.replicas
    counts: Counter[str] = Counter()
    async with asyncio.TaskGroup() as tasks:
        clients = [
            tasks.create_task(rude(router, random.Random(f"{seed} {router.name}"), counts))
            for router in routers
        ]
        held = await sampled([*routers, *replicas], seconds)
        for client in clients:
            client.cancel()
    await recovered(routers, replicas)
    await audited(routers)
    return held, counts


async def run(minutes: float, seed: int, as_json: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="prefixlb-soak-") as directory:
        async with campaign(Path(directory), seed=seed) as field:
            held, rudeness = await soak(field, 60 * minutes, seed)
            outcomes = field.load.outcomes
    good = all(each.is_flat for each in held) and not outcomes.violations
    if as_json:
        found = {"requests": outcomes.counts, "rude": rudeness, "violations": outcomes.violations}
        print(json.dumps({**found, "held": [vars(each) for each in held], "ok": good}))
    else:
        report(held, outcomes.counts, rudeness, outcomes.violations)
    return 0 if good else 1


def report(
    held: Sequence[Held], counts: Counter[str], rudeness: Counter[str], violations: Sequence[str]
) -> None:
    out = console.stdout()
    table = console.table(out, "process", ">warm", ">end", ">most", ">open files", "")
    for each in held:
        sizes = (*ends(each.rss_bytes), max(each.rss_bytes))
        table.add_row(
            each.name,
            *(f"{size / 2**20:.1f} MiB" for size in sizes),
            f"{each.fds[-1]}, at most {max(each.fds)}",
            "flat" if each.is_flat else "[red]grows[/]",
        )
    out.print(table)
    out.print("requests: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    out.print("besides: " + ", ".join(f"{n} {what}" for what, n in sorted(rudeness.items())))
    for violation in violations[:20]:
        out.print(f"[red]must not happen:[/] {violation}")


def main() -> int:
    """Exit code 0 if no process grew and no good client was let down."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="at least 1 (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="of everything left to chance")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    args = parser.parse_args()
    if args.minutes < 1:
        parser.error(f"--minutes: expected at least 1, got {args.minutes:g}")
    return asyncio.run(run(args.minutes, args.seed, args.json))


if __name__ == "__main__":
    sys.exit(main())
