"""`prefixlb demo`: a real cluster, a workload people recognise, and the figures of two policies."""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from functools import partial

from proto.client import Client
from proto.credentials import IN_CLEAR
from proto.errors import LBError, from_status
from proto.prefixlb.v1.replica_pb2 import FlushRequest, InfoResponse
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub
from router.cli import console
from router.cli.cluster import LocalCluster
from router.cli.demo.play import Played, play
from router.cli.demo.report import ReplicaTotals, Run, show, verdict
from router.cli.demo.screen import Screen
from router.cli.demo.workload import schedule
from router.cli.flag_types import model_files, whole
from router.cli.fleet_view import ReplicaView, replica_info, view_fleet
from router.cli.log_dir import log_dir
from router.cli.model import fetch_model
from router.cli.signals import end_in_order
from router.settings import POLICIES

REPLICAS = 2
CONCURRENCY = 4
SLOTS = 1300
"""A replica's pool in tokens: two system prompts and a few conversations, then it must evict."""
POLICY, BASELINE = "cost", "round_robin"
QUIET_TIMEOUT_S = 15.0

EXAMPLES = """examples:
  prefixlb demo
  prefixlb demo --against least_load
  prefixlb demo --model ~/models/SmolLM2-360M-Instruct
  prefixlb demo --json | python3 -m json.tool
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="see it work: four assistants, twelve users, two policies",
        description="Start Redis, two replicas and a router, let twelve users talk to four "
        "assistants, then once more under another policy, and compare. Exit code 0 only if routing "
        "by prefix wins and every mirror equals its tree.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=model_files, metavar="PATH", help="weights to serve")
    parser.add_argument(
        "--against",
        choices=[policy for policy in POLICIES if policy != POLICY],
        default=BASELINE,
        metavar="POLICY",
        help="what to compare with: %(choices)s (default: %(default)s)",
    )
    parser.add_argument(
        "--slots",
        type=whole(1),
        default=SLOTS,
        metavar="N",
        help="tokens each replica can cache; the default is small, so that it must evict "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object at the end; progress goes to stderr",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play the workload under both policies; 0 if all claims hold."""
    end_in_order()
    out = console.stderr() if args.json else console.stdout()
    model = args.model or fetch_model()
    out.print("starting Redis, two replicas and a router ...")
    with log_dir() as logs:
        cluster = LocalCluster(
            model=model,
            state_dir=logs.path,
            replicas=REPLICAS,
            policy=POLICY,
            replica_flags=["--slots", str(args.slots)],
            waiting=partial(console.waiting, out),
        )
        with cluster:
            with Screen(out, brief=args.json) as screen:
                ours = run_policy(cluster, POLICY, screen)
            out.print(f"\nthe same workload under {args.against}")
            cluster.restart_router(args.against)
            with Screen(out, brief=True) as screen:
                other = run_policy(cluster, args.against, screen)
        claims = verdict(ours, other)
        logs.worth_reading = not all(claim.holds for claim in claims)
        if args.json:
            held = {claim.key: claim.holds for claim in claims}
            print(json.dumps({"runs": [ours.as_dict(), other.as_dict()], "claims": held}))
        else:
            show(out, ours, other)
    return 1 if logs.worth_reading else 0


def run_policy(cluster: LocalCluster, policy: str, screen: Screen) -> Run:
    """The workload on empty caches; figures are what this run added."""
    empty_caches(cluster)
    before = [info(replica.address) for replica in cluster.replicas]
    started_s = time.monotonic()
    played = asyncio.run(
        play(cluster.router.address, schedule(), concurrency=CONCURRENCY, screen=screen)
    )
    duration_s = time.monotonic() - started_s
    views = when_quiet(cluster.router.address)
    totals = [totals_of(view, was, played) for view, was in zip(views, before, strict=True)]
    return Run(policy, duration_s, played, totals)


def totals_of(view: ReplicaView, before: InfoResponse, played: Sequence[Played]) -> ReplicaTotals:
    """One replica's part of a run that began when it said `before`."""
    if view.info is None:
        raise LBError(f"{view.replica_id} no longer answers")
    results = [one.result for one in played if one.result]
    served = [one for one in results if one.route and one.route.replica == view.replica_id]
    return ReplicaTotals(
        replica=view.replica_id,
        requests=len(served),
        prompt_tokens=sum(result.prompt_tokens for result in served),
        cached_tokens=sum(result.cached_tokens for result in served),
        prefilled_tokens=view.info.prefilled_tokens - before.prefilled_tokens,
        evicted_tokens=view.info.evicted_tokens - before.evicted_tokens,
        mirror_blocks=view.status.count,
        tree_blocks=view.info.count,
        mirror_equals_tree=view.mirror_equals_tree,
    )


def empty_caches(cluster: LocalCluster) -> None:
    """Warm code paths up, then flush, so that both policies start from the same state."""
    for replica in cluster.replicas:
        with Client(replica.address) as client:
            client.complete("Good morning", max_tokens=2)
        channel = IN_CLEAR.channel(replica.address)
        with channel, from_status():
            ReplicaStub(channel).Flush(FlushRequest(), timeout=5.0)
    when_quiet(cluster.router.address)


def when_quiet(router_address: str) -> list[ReplicaView]:
    """The fleet once every mirror has caught up, or as it is after QUIET_TIMEOUT_S."""
    deadline_s = time.monotonic() + QUIET_TIMEOUT_S
    while True:
        views = view_fleet(router_address)
        if all(view.mirror_equals_tree for view in views) or time.monotonic() > deadline_s:
            return views
        time.sleep(0.1)


def info(address: str) -> InfoResponse:
    """What a replica says; raises LBError if it does not answer."""
    said = replica_info(address)
    if said is None:
        raise LBError(f"the replica at {address} does not answer")
    return said
