"""`prefixlb top`: what each replica has cached, reuses and has to do, second by second."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import RenderableType
from rich.table import Table

from proto.prefixlb.v1.admin_pb2 import ListReplicasResponse
from router.cli import console, refresh
from router.cli.fleet_view import FleetView, ReplicaView, read_fleet
from router.cli.request_flags import add_router_flag, credentials
from router.wording import fleet_as_dict, fleet_notes

EXAMPLES = """examples:
  prefixlb top
  prefixlb top --router 10.0.0.7:30000
  prefixlb top --json | jq -c '.replicas[] | [.replica_id, .hit_rate_last]'
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "top",
        help="watch hit rates, load and delta lag, each second",
        description="Show, each second until Ctrl-C, every replica that a router knows: cached\n"
        "blocks, the share of prompt tokens that was cached (since the last time, and since\n"
        "the replica joined), what it has to do, and how late its deltas come.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object a line")
    add_router_flag(parser, "the router to ask")
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Row:
    """One replica since the last time."""

    view: ReplicaView
    last_prompt: int
    last_delivered: int
    """Prompt tokens of requests completed in that time, and how many of them were cached."""


@dataclass(frozen=True)
class Frame:
    """The fleet at one time."""

    rows: Sequence[Row]
    listed: ListReplicasResponse


def run(args: argparse.Namespace) -> int:
    """Print until Ctrl-C."""
    fleets = refresh.each_second(partial(read_fleet, args.router, credentials(args)))
    if args.json:
        for frame in frames(fleets):
            replicas = [as_dict(row) for row in frame.rows]
            shown = {"router": args.router, "replicas": replicas, **fleet_as_dict(frame.listed)}
            print(json.dumps(shown), flush=True)
    else:
        refresh.show(map(report, frames(fleets)))
    return 0


def frames(fleets: Iterator[FleetView]) -> Iterator[Frame]:
    """What changed from each fleet to the next."""
    before: dict[tuple[str, str], tuple[int, int]] = {}
    for fleet in fleets:
        views = fleet.replicas
        now = {_identity(view): _tokens(view) for view in views}
        rows = [Row(view, *_since(before.get(_identity(view)), _tokens(view))) for view in views]
        yield Frame(rows, fleet.listed)
        before = now


def _identity(view: ReplicaView) -> tuple[str, str]:
    return view.replica_id, view.status.lease.address


def _tokens(view: ReplicaView) -> tuple[int, int]:
    return view.status.prompt_tokens, view.status.delivered_tokens


def _since(before: tuple[int, int] | None, now: tuple[int, int]) -> tuple[int, int]:
    """Nothing the first time; totals that went down have begun anew."""
    if before is None:
        return 0, 0
    prompt, delivered = now[0] - before[0], now[1] - before[1]
    return now if prompt < 0 or delivered < 0 else (prompt, delivered)


def report(frame: Frame) -> RenderableType:
    """The rows, and below who left and whether Redis is away."""
    return console.noted(table(frame.rows), fleet_notes(frame.listed))


def table(rows: Sequence[Row]) -> Table:
    """One row a replica; hits are shares of prompt tokens, pending are prompt tokens to compute."""
    made = console.table(
        console.stdout(),
        *("replica", "state", "mirror", ">blocks", ">hits, last", ">hits, all", ">in flight"),
        *(">running", ">waiting", ">pending", ">lag ms"),
    )
    for row in rows:
        status = row.view.status
        made.add_row(
            row.view.replica_id,
            row.view.state,
            row.view.mirror,
            str(status.count),
            console.percent(row.last_delivered, row.last_prompt),
            console.percent(status.delivered_tokens, status.prompt_tokens),
            str(status.in_flight),
            str(status.load.running),
            str(status.load.waiting),
            str(status.load.pending_tokens),
            f"{1000 * status.delta_lag_s:.0f}",
        )
    return made


def as_dict(row: Row) -> dict[str, object]:
    """For scripts; shares from 0 to 1, null of nothing."""
    status = row.view.status
    return {
        "replica_id": row.view.replica_id,
        "address": status.lease.address,
        "state": row.view.state,
        "mirror": row.view.mirror,
        "blocks": status.count,
        "hit_rate_last": _share(row.last_delivered, row.last_prompt),
        "hit_rate": _share(status.delivered_tokens, status.prompt_tokens),
        "in_flight": status.in_flight,
        "running": status.load.running,
        "waiting": status.load.waiting,
        "pending_tokens": status.load.pending_tokens,
        "delta_lag_ms": round(1000 * status.delta_lag_s, 3),
        "silent_s": status.silent_s,
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
