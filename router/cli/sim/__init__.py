"""`prefixlb sim`: what each policy would bring for a trace, before anything is installed."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from proto.errors import InvalidRequest
from router.cli import console
from router.cli.flag_types import at_least, part, seconds, whole
from router.cli.sim import plot, report, tenants, trace_file
from router.cli.sim.fleet import ORDERS, Fleet, simulate
from router.cli.sim.workload import Workload
from router.settings import POLICIES, USUAL

EXAMPLES = """examples:
  prefixlb sim                                         made prompts of 60 tenants
  prefixlb sim --trace log.jsonl --replicas 16         your own, on your own fleet
  prefixlb sim --trace log.jsonl --policy all --plot policies.png
  prefixlb sim --utilisation 0.9 --routers 3 --lag-ms 30
  prefixlb sim --trace log.jsonl --json | jq '.policies.cost.hit_rate'

A trace is one JSON object a line, as Mooncake publishes them; `prefixlb hash-log` makes one:
  {"timestamp": MILLISECONDS, "input_length": TOKENS, "output_length": TOKENS, "hash_ids": [N, ...]}
Each of hash_ids names a block of tokens with all before it, so that equal numbers are equal
prefixes; a line's own "block_size" says of how many, else --block-size does. Replicas are a model;
the index and the pick are the ones that routers run.
Imbalance is the most prompt tokens that one replica computed, over the mean of all: 1 is even.
"""
DEFAULT_POLICIES = "cost,cache_aware,least_load,round_robin"
BLOCK_SIZE = 512
"""As Mooncake's traces have it."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Says what holds without a flag."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        has_none = action.default is None or action.default is False
        if has_none or action.default is argparse.SUPPRESS or "default" in text:
            return text
        return f"{text} (default: %(default)s)"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "sim",
        help="play a trace on replicas that are not there, under each policy",
        description="Play a trace on simulated replicas under each policy, and compare hit rate, "
        "time to first token and balance.",
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the comparison (PNG, SVG)")
    parser.add_argument(
        "--policy",
        type=policies,
        metavar="NAME,...",
        default=policies(DEFAULT_POLICIES),
        help=f"all, or of {', '.join(POLICIES)} (default: {DEFAULT_POLICIES})",
    )
    _add_workload_flags(parser)
    _add_fleet_flags(parser)
    _add_policy_flags(parser)
    parser.set_defaults(run=run)


def _add_workload_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("workload").add_argument
    add("--trace", type=Path, metavar="FILE", help="requests to play (default: made ones)")
    add(
        "--block-size",
        type=whole(1),
        metavar="N",
        help=f"tokens in a block, where the trace does not say (default: {BLOCK_SIZE})",
    )
    add("--tenants", type=whole(1), default=60, metavar="N", help="of made requests")
    add("--requests", type=whole(1), metavar="N", help="the first ones alone (made: 12000)")
    how_fast = parser.add_mutually_exclusive_group()
    how_fast.add_argument(
        "--utilisation",
        type=at_least(0.001),
        metavar="F",
        help="come so fast that computing all prompts without a cache takes this part of the fleet",
    )
    how_fast.add_argument("--speed", type=at_least(0.001), metavar="F", help="come so much faster")
    add(
        "--spread-s",
        type=seconds,
        metavar="S",
        help="spread arrivals evenly over so many seconds, where a trace's clock is coarse",
    )
    add("--seed", type=whole(0), default=7, metavar="N", help="of all that is left to chance")


def _add_fleet_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("fleet").add_argument
    add("--replicas", type=whole(1, 4096), default=8, metavar="N", help="how many")
    add("--cache-tokens", type=whole(1), default=1_000_000, metavar="N", help="each can cache")
    add("--prefill-rate", type=at_least(1), default=20_000.0, metavar="N", help="tokens a second")
    add("--order", choices=ORDERS, default="shortest", help="which waiting prompt goes first")
    add("--chunk-tokens", type=whole(1), default=4096, metavar="N", help="before the next choice")
    add("--routers", type=whole(1, 64), default=1, metavar="N", help="that share the requests")
    add("--lag-ms", type=at_least(0), default=5.0, metavar="MS", help="from replica to router")
    add("--loss", type=part, default=0.0, metavar="F", help="part of the deltas that is lost")


def _add_policy_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("policies, as of `prefixlb router`")

    def add(flag: str, of: Callable[[str], float], what: str) -> None:
        usual = getattr(USUAL, flag.replace("-", "_"))
        group.add_argument(f"--{flag}", type=of, default=usual, metavar="N", help=what)

    add("uncached-weight", at_least(0), "k of cost")
    add("decode-weight", at_least(0), "of cost")
    add("cache-threshold", at_least(0), "of cache_aware")
    add("balance-abs-threshold", whole(0), "of cache_aware")
    add("balance-rel-threshold", at_least(1), "likewise")
    add("load-factor", at_least(1), "of consistent_hash")


def policies(text: str) -> tuple[str, ...]:
    """Names separated by commas; "all"."""
    if text == "all":
        return POLICIES
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(
                f"unknown policy {name!r}, expected all or some of {', '.join(POLICIES)}"
            )
    return names


def run(args: argparse.Namespace) -> int:
    """Play the workload once for each policy."""
    if args.plot:
        plot.check(args.plot)
    workload = _workload(args)
    fleet = Fleet.from_flags(args)
    results = {policy: simulate(policy, workload, fleet) for policy in args.policy}
    if args.json:
        print(json.dumps(report.as_dict(workload, fleet, results)))
    else:
        console.stdout().print(report.table(workload, fleet, results))
    if args.plot:
        plot.draw(args.plot, workload.name, results)
        console.stderr().print(f"drawn in {args.plot}", markup=False)
    return 0


def _workload(args: argparse.Namespace) -> Workload:
    block_size = args.block_size or BLOCK_SIZE
    if args.trace:
        workload = trace_file.read(args.trace, block_size)
        if args.block_size not in (None, workload.block_size):
            raise InvalidRequest(
                f"--block-size {args.block_size}: {args.trace} says itself that its blocks have "
                f"{workload.block_size} tokens"
            )
    else:
        requests = args.requests or tenants.REQUESTS
        workload = tenants.make(requests, args.tenants, block_size, args.seed)
    if args.requests:
        workload = workload.first(args.requests)
    if args.spread_s:
        workload = workload.spread(args.spread_s, args.seed)
    if args.utilisation:
        raw = workload.utilisation(args.prefill_rate * args.replicas)
        if not raw:
            raise InvalidRequest("--utilisation: all requests of the trace come at one time")
        return workload.faster(args.utilisation / raw)
    return workload.faster(args.speed) if args.speed else workload
