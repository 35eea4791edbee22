"""`prefixlb up`: a cluster on this machine until Ctrl-C."""

import argparse
import time
from functools import partial

from rich.console import Console

from router.cli import console
from router.cli.child import END_GRACE_S, Child
from router.cli.cluster import HOST, ClusterError, LocalCluster
from router.cli.flag_types import MAX_PORT, model_files, whole
from router.cli.log_dir import LogDir, log_dir
from router.cli.model import fetch_model
from router.cli.redis_server import is_free
from router.cli.signals import end_in_order
from router.settings import POLICIES, RouterSettings

WATCH_PERIOD_S = 0.2
SHORTEST_LIFE_S = 10.0
"""Who ends sooner would end again."""

METRICS_PORT: int = RouterSettings.model_fields["metrics_port"].default

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
    parser.add_argument("--replicas", type=whole(1), default=2, metavar="N", help="(default: 2)")
    parser.add_argument("--model", type=model_files, metavar="PATH", help="weights to serve")
    parser.add_argument(
        "--port",
        type=whole(1, MAX_PORT),
        default=30000,
        metavar="PORT",
        help="of the router (default: %(default)s)",
    )
    parser.add_argument(
        "--slots",
        type=whole(1),
        default=8192,
        metavar="N",
        help="tokens each replica can cache (default: %(default)s)",
    )
    parser.add_argument(
        "--policy", choices=POLICIES, default="cost", help="of the router (default: cost)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns 0 after Ctrl-C, SIGTERM or a closed terminal, 1 if the router ended twice."""
    end_in_order()
    out = console.stdout()
    if not is_free(args.port, HOST):
        raise ClusterError(
            f"port {args.port} of {HOST} is taken, perhaps by another cluster: "
            "choose one with --port"
        )
    model = args.model or fetch_model()
    has_usual = args.port != METRICS_PORT and is_free(METRICS_PORT, HOST)
    out.print(f"starting Redis, {args.replicas} replicas and a router ...")
    with log_dir() as logs:
        cluster = LocalCluster(
            model=model,
            state_dir=logs.path,
            replicas=args.replicas,
            policy=args.policy,
            port=args.port,
            metrics_port=METRICS_PORT if has_usual else None,
            replica_flags=["--slots", str(args.slots)],
            waiting=partial(console.waiting, out),
        )
        with cluster:
            _introduce(out, cluster)
            try:
                _watch(out, cluster, logs)
            except KeyboardInterrupt:
                out.print(
                    "ending router, replicas and Redis, in this order: running answers have "
                    f"{END_GRACE_S:.0f} s, a second Ctrl-C ends them at once"
                )
                return 0
    return 1


def _introduce(out: Console, cluster: LocalCluster) -> None:
    table = console.table(out, "", "address", "metrics", ">pid")
    for child in cluster.children:
        table.add_row(child.name, child.address, child.metrics_url or "", str(child.pid))
    out.print(table)
    router = cluster.router.address
    out.print(f"logs      {cluster.state_dir}", soft_wrap=True)
    out.print(f"look      {cluster.status_page_url}", soft_wrap=True)
    out.print("try       in another terminal:", soft_wrap=True)
    for example in ('generate --chat "Name three rivers."', "chat", "status --watch"):
        out.print(f"            prefixlb {example} --router {router}", soft_wrap=True)
    out.print("Ctrl-C ends it.")


def _watch(out: Console, cluster: LocalCluster, logs: LogDir) -> None:
    """Report each child that ends by itself and start it again; the rest goes on meanwhile.

    One that ends again soon after stays ended. Returns when the router does.
    """
    restarted: set[Child] = set()
    given_up: set[Child] = set()
    while cluster.router not in given_up:
        for child in cluster.children:
            if child in given_up or child.running:
                continue
            logs.worth_reading = True
            console.error(child.ending())
            last_words = child.last_words()  # before the next life writes into the same log
            if child in restarted and child.age_s < SHORTEST_LIFE_S:
                given_up.add(child)
                console.error(f"{child.name} ended twice in a row and stays so")
            else:
                restarted.add(child)
                child.start()
                out.print(f"{child.name} is started again, as pid {child.pid}")
            console.stderr().print(last_words, markup=False, soft_wrap=True)
        time.sleep(WATCH_PERIOD_S)
