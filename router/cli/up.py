"""`prefixlb up`: a cluster on this machine until Ctrl-C."""

import argparse
import tempfile
import time
from pathlib import Path
from typing import get_args

from rich.console import Console

from router.cli import console
from router.cli.child import Child
from router.cli.cluster import LocalCluster
from router.cli.model import fetch_model
from router.cli.signals import end_in_order
from router.settings import RouterSettings

POLICIES = get_args(RouterSettings.model_fields["policy"].annotation)

EXAMPLES = """examples:
  prefixlb up --replicas 3
  prefixlb up --model ~/models/SmolLM2-360M-Instruct --slots 16384 --port 30000
  prefixlb up --policy round_robin

--model takes a GGUF file or a Hugging Face directory; without it, the small model that
`prefixlb model` fetches.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "up",
        help="run a cluster on this machine: Redis, replicas, router",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--replicas", type=count, default=2, metavar="N", help="(default: 2)")
    parser.add_argument("--model", type=Path, metavar="PATH", help="weights to serve")
    parser.add_argument(
        "--port", type=int, default=30000, help="of the router (default: %(default)s)"
    )
    parser.add_argument(
        "--slots",
        type=count,
        default=8192,
        metavar="N",
        help="tokens each replica can cache (default: %(default)s)",
    )
    parser.add_argument(
        "--policy", choices=POLICIES, default="cost", help="of the router (default: cost)"
    )
    parser.set_defaults(run=run)


def count(text: str) -> int:
    """The type of an argument that counts something."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def run(args: argparse.Namespace) -> int:
    """Returns 0 after Ctrl-C, SIGTERM or a closed terminal, 1 if the router ended by itself."""
    end_in_order()
    out = console.stdout()
    cluster = LocalCluster(
        model=args.model or fetch_model(),
        state_dir=Path(tempfile.mkdtemp(prefix="prefixlb-")),
        replicas=args.replicas,
        policy=args.policy,
        port=args.port,
        replica_flags=["--slots", str(args.slots)],
        report=lambda line: out.print(f"[dim]{line} ...[/]"),
    )
    with cluster:
        _introduce(out, cluster)
        try:
            return _watch(cluster)
        except KeyboardInterrupt:
            out.print("ending router, replicas and Redis, in this order ...")
    return 0


def _introduce(out: Console, cluster: LocalCluster) -> None:
    table = console.table(out, "", "address", "metrics", ">pid")
    for child in cluster.children:
        table.add_row(child.name, child.address, child.metrics_url or "", str(child.pid))
    out.print(table)
    router = cluster.router.address
    out.print(f"logs      {cluster.state_dir}", soft_wrap=True)
    out.print("try       in another terminal:", soft_wrap=True)
    for example in ('generate --chat "Name three rivers."', "chat", "status --watch"):
        out.print(f"            prefixlb {example} --router {router}", soft_wrap=True)
    out.print("Ctrl-C ends it.")


def _watch(cluster: LocalCluster) -> int:
    """Report each child that ends by itself; the rest goes on, as it would in production."""
    ended: set[Child] = set()
    while True:
        for child in cluster.children:
            if child not in ended and not child.running:
                ended.add(child)
                console.error(child.obituary())
        if cluster.router in ended:
            return 1
        time.sleep(0.2)
