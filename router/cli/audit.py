"""`prefixlb audit`: whether every mirror of a router equals its replica's tree."""

import argparse
import json
from typing import Any

from rich.table import Table

from proto.enum_names import short_name
from proto.errors import from_status
from proto.prefixlb.v1.admin_pb2 import (
    AuditOutcome,
    AuditRequest,
    AuditResponse,
    ListReplicasRequest,
)
from proto.prefixlb.v1.admin_pb2_grpc import AdminStub
from router.cli import console
from router.cli.request_flags import add_router_flag, credentials
from router.wording import fleet_notes

EXAMPLES = """examples:
  prefixlb audit
  prefixlb audit replica-0 --json
  prefixlb audit || echo "a mirror differs from its tree, or could not be compared"

Exit code 0 only if there are mirrors and every one is equal. Each audited replica sends one
snapshot of its tree.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "audit",
        help="compare mirrors with the replicas' own trees, block by block",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("replicas", nargs="*", metavar="REPLICA", help="default: all")
    parser.add_argument("--json", action="store_true", help="print one JSON object a replica")
    add_router_flag(parser, "the router whose mirrors to audit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print each replica's result as it comes in JSON, or all in one table."""
    audited = []
    mine = credentials(args)
    request = AuditRequest(replica_ids=args.replicas)
    status = console.stderr().status("comparing trees block by block ...")
    with mine.channel(args.router) as channel, from_status(), status:
        admin = AdminStub(channel)
        for each in admin.Audit(request, metadata=mine.metadata):
            audited.append(each)
            if args.json:
                print(json.dumps(as_dict(each)), flush=True)
        if not args.json:
            listed = admin.ListReplicas(ListReplicasRequest(), metadata=mine.metadata)
            console.stdout().print(console.noted(audit_table(audited), fleet_notes(listed)))
    return 0 if audited and all(outcome(each) == "equal" for each in audited) else 1


def audit_table(audited: list[AuditResponse]) -> Table:
    """One row a replica; numbers are blocks."""
    table = console.table(
        console.stdout(),
        *(
            "replica",
            "mirror",
            ">seq",
            ">tree",
            ">mirrored",
            ">forgotten",
            ">missing",
            ">extra",
            "detail",
        ),
    )
    for each in audited:
        blocks = (each.tree_blocks, each.mirror_blocks, each.forgotten, each.missing, each.extra)
        figures = [str(figure) for figure in (each.seq, *blocks)]
        if outcome(each) == "undecided":  # nothing was compared
            figures = ["-"] * len(figures)
        table.add_row(each.replica_id, outcome(each), *figures, each.detail or _first_hashes(each))
    return table


def outcome(audited: AuditResponse) -> str:
    """ "equal", "different" or "undecided"."""
    return short_name(AuditOutcome, audited.outcome)


def as_dict(audited: AuditResponse) -> dict[str, Any]:
    """For scripts; names as in admin.proto, hashes in hex."""
    numbers = ("seq", "tree_blocks", "mirror_blocks", "forgotten", "missing", "extra")
    return {
        "replica_id": audited.replica_id,
        "outcome": outcome(audited),
        "detail": audited.detail,
        "epoch": f"{audited.epoch:016x}",
        **{name: getattr(audited, name) for name in numbers},
        "missing_hashes": [f"{each:016x}" for each in audited.missing_hashes],
        "extra_hashes": [f"{each:016x}" for each in audited.extra_hashes],
    }


def _first_hashes(audited: AuditResponse) -> str:
    """Two of each kind, enough to look for in a log of batches."""
    parts = [
        f"{kind} {', '.join(f'{each:016x}' for each in hashes[:2])}"
        + (f" and {count - 2} more" if count > 2 else "")
        for kind, hashes, count in (
            ("missing", audited.missing_hashes, audited.missing),
            ("extra", audited.extra_hashes, audited.extra),
        )
        if hashes
    ]
    return "; ".join(parts)
