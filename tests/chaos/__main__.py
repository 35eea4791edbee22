"""Break a cluster on purpose, again and again, and check that it heals and loses nothing.

python -m tests.chaos                        every fault once, in a random order
python -m tests.chaos --seed 7 --rounds 3    three times, as another chance has it
python -m tests.chaos --quick                faults that last seconds last fractions of them
python -m tests.chaos --only replica_dies_and_restarts --rounds 20
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from router.cli import console
from tests.chaos.campaign import Trial, campaign
from tests.chaos.faults import FAULTS
from tests.chaos.memory import LIMITS

QUICK = 0.15


def main() -> int:
    """Exit code 0 if every fault bit, all mirrors healed in time, nothing was lost or wrong, and
    memory was flat.
    """
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="prefixlb-chaos-") as directory:
        return asyncio.run(run(args, Path(directory)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything left to chance")
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault comes")
    parser.add_argument("--quick", action="store_true", help=f"hold faults {QUICK} as long")
    names = [fault.__name__ for fault in FAULTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="FAULT", help=", ".join(names))
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    return parser.parse_args()


async def run(args: argparse.Namespace, directory: Path) -> int:
    faults = [fault for fault in FAULTS if not args.only or fault.__name__ in args.only]
    order = faults * args.rounds
    random.Random(args.seed).shuffle(order)
    progress = console.stderr()
    trials: list[Trial] = []
    scale = QUICK if args.quick else 1.0
    async with campaign(directory, seed=args.seed, hold_s=lambda full_s: scale * full_s) as field:
        for fault in order:
            trial = await field.throw(fault)
            trials.append(trial)
            progress.print(
                f"{len(trials)}/{len(order)} {trial.fault}: "
                + (trial.failure or f"all mirrors equal their trees after {trial.recovery_s:.2f} s")
            )
        memory, outcomes = field.memory, field.load.outcomes
    bad = [trial for trial in trials if trial.failure]
    good = not (bad or outcomes.violations or memory.excess)
    if args.json:
        print(
            json.dumps(
                {
                    "seed": args.seed,
                    "trials": [vars(trial) for trial in trials],
                    "outcomes": dict(outcomes.counts),
                    "violations": outcomes.violations,
                    "growth_bytes": memory.growth,
                    "ok": good,
                },
                allow_nan=False,
            )
        )
    else:
        report(trials, outcomes.counts, outcomes.violations, memory.growth)
    return 0 if good else 1


def report(
    trials: Sequence[Trial],
    counts: dict[str, int],
    violations: Sequence[str],
    growth: dict[str, int],
) -> None:
    """A row a fault; what the load saw; what must not have happened."""
    out = console.stdout()
    table = console.table(out, "fault", ">times", ">healed", ">recovery p50", ">p99", "failure")
    for name in sorted({trial.fault for trial in trials}):
        mine = [trial for trial in trials if trial.fault == name]
        recovery = sorted(trial.recovery_s or math.inf for trial in mine)
        table.add_row(
            name.replace("_", " "),
            str(len(mine)),
            str(sum(not trial.failure for trial in mine)),
            f"{statistics.median(recovery):.2f} s",
            f"{recovery[min(len(recovery) - 1, int(0.99 * len(recovery)))]:.2f} s",
            next((trial.failure for trial in mine if trial.failure), ""),
        )
    out.print(table)
    out.print("requests: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    out.print(
        "memory grew at most by "
        + ", ".join(
            f"{size / 2**20:.1f} MiB ({kind}, limit {LIMITS[kind] >> 20})"
            for kind, size in growth.items()
        )
    )
    for violation in violations[:20]:
        out.print(f"[red]must not happen:[/] {violation}")
    if len(violations) > 20:
        out.print(f"... and {len(violations) - 20} more")


if __name__ == "__main__":
    sys.exit(main())
