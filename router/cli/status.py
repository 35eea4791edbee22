"""`prefixlb status`: the fleet as a router sees it, beside what each replica says."""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from proto.enum_names import short_name
from proto.prefixlb.v1.admin_pb2 import BreakerState
from router.cli import console, refresh
from router.cli.fleet_view import FleetView, ReplicaView, read_fleet
from router.cli.request_flags import add_router_flag, credentials
from router.wording import fleet_as_dict, fleet_notes

EXAMPLES = """examples:
  prefixlb status --watch
  prefixlb status --json | python3 -m json.tool
  prefixlb status --watch --json >>fleet.jsonl
  PREFIXLB_ROUTER=10.0.0.7:30000 prefixlb status
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "status",
        help="show replicas, mirrors, load and hit rates",
        description="Show every replica that a router knows: its mirror of the replica's tree, "
        "what runs there, and how many prompt tokens were cached.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object on one line")
    parser.add_argument("--watch", action="store_true", help="again every second, until Ctrl-C")
    add_router_flag(parser, "the router to ask")
    parser.set_defaults(run=run)


WIDE = 110
"""Columns of a terminal from which on the table has room for all."""


def run(args: argparse.Namespace) -> int:
    """Print it once, or again and again."""
    read = partial(read_fleet, args.router, credentials(args))
    fleets = refresh.each_second(read) if args.watch else iter((read(),))
    if args.json:
        for fleet in fleets:
            replicas = [as_dict(view) for view in fleet.replicas]
            shown = {"router": args.router, "replicas": replicas, **fleet_as_dict(fleet.listed)}
            print(json.dumps(shown), flush=True)
    elif args.watch:
        refresh.show(map(fleet_report, fleets))
    else:
        console.stdout().print(fleet_report(next(fleets)))
    return 0


def fleet_report(fleet: FleetView) -> RenderableType:
    """A row a replica, and below why some are not used, who left, and whether Redis is away."""
    refused = [
        f"{view.replica_id} at {view.status.lease.address} is refused: {view.status.refusal}"
        for view in fleet.replicas
        if view.status.refusal
    ]
    return console.noted(fleet_table(fleet.replicas), [*refused, *fleet_notes(fleet.listed)])


def fleet_table(views: Sequence[ReplicaView]) -> Table:
    """Rates are shares of the prompt tokens; hit is what was delivered. See deploy/README.md."""
    out = console.stdout()
    table = console.table(
        out,
        *("replica", "state", "mirror", ">blocks", ">run", ">wait", ">filled", ">requests", ">hit"),
        *((">available", ">captured", "address") if out.width >= WIDE else ()),
    )
    for view in views:
        status, load = view.status, view.status.load
        cells = [
            view.replica_id,
            view.state,
            view.mirror,
            *(str(n) for n in (status.count, load.running, load.waiting)),
            console.percent(load.total_slots - load.free_slots, load.total_slots),
            str(status.requests),
            console.percent(status.delivered_tokens, status.prompt_tokens),
            console.percent(status.available_tokens, status.prompt_tokens),
            console.percent(status.captured_tokens, status.prompt_tokens),
            status.lease.address,
        ]
        table.add_row(*cells[: len(table.columns)])
    return table


def as_dict(view: ReplicaView) -> dict[str, Any]:
    """For scripts; names as in admin.proto and replica.proto, 64-bit hashes in hex."""
    status, info = view.status, view.info
    tokens = ("prompt_tokens", "available_tokens", "captured_tokens", "delivered_tokens")
    counts = ("seq", "count", "in_flight", "requests", "gaps", "snapshots", *tokens)
    load = ("running", "waiting", "pending_tokens", "free_slots", "evictable_slots", "total_slots")
    said = ("prompt_tokens", "cached_tokens", "prefilled_tokens", "evicted_tokens", "count")
    return {
        "replica_id": view.replica_id,
        "address": status.lease.address,
        "model": status.lease.model,
        "live": status.live,
        "refusal": status.refusal,
        "other_tokenizer": status.other_tokenizer,
        "draining": status.load.draining,
        "breaker": short_name(BreakerState, status.breaker),
        "mirror": view.mirror.split(",")[0],
        "mirror_equals_tree": view.mirror_equals_tree,
        "epoch": f"{status.epoch:016x}",
        "digest": f"{status.digest:016x}",
        "delta_lag_s": status.delta_lag_s,
        "silent_s": status.silent_s,
        **{name: getattr(status, name) for name in counts},
        "load": {name: getattr(status.load, name) for name in load},
        "info": info and {name: getattr(info, name) for name in said},
    }
