"""`prefixlb status`: the fleet as a router sees it, beside what each replica says."""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.table import Table

from router.cli import console, refresh
from router.cli.fleet_view import ReplicaView, view_fleet
from router.cli.request_flags import add_router_flag

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


def run(args: argparse.Namespace) -> int:
    """Print it once, or again and again."""
    read = partial(view_fleet, args.router)
    fleets = refresh.each_second(read) if args.watch else iter((read(),))
    if args.json:
        for views in fleets:
            replicas = [as_dict(view) for view in views]
            print(json.dumps({"router": args.router, "replicas": replicas}), flush=True)
    elif args.watch:
        refresh.show(map(fleet_table, fleets))
    else:
        console.stdout().print(fleet_table(next(fleets)))
    return 0


def fleet_table(views: Sequence[ReplicaView]) -> Table:
    """One row a replica. Slots are those in use; the hit rate is delivered over prompt tokens."""
    table = console.table(
        console.stdout(),
        *("replica", "address", "state", "mirror", ">blocks", ">running", ">waiting", ">slots"),
        *(">requests", ">prompt", ">cached", ">hit rate"),
    )
    for view in views:
        status, load = view.status, view.status.load
        used = load.total_slots - load.free_slots - load.evictable_slots
        held = load.total_slots - load.free_slots
        table.add_row(
            view.replica_id,
            status.lease.address,
            view.state,
            view.mirror,
            str(status.count),
            str(load.running),
            str(load.waiting),
            f"{used} busy, {held} of {load.total_slots} filled",
            str(status.requests),
            str(status.prompt_tokens),
            str(status.delivered_tokens),
            console.percent(status.delivered_tokens, status.prompt_tokens),
        )
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
