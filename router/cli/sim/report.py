"""What came of it, as a table and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from router.cli import console
from router.cli.sim.fleet import Fleet, Result
from router.cli.sim.workload import Workload


def table(workload: Workload, fleet: Fleet, results: Mapping[str, Result]) -> RenderableType:
    """What was played on what, and a row a policy."""
    made = console.table(
        console.stdout(),
        *("policy", ">hit rate", ">ttft mean", ">p50", ">p99", ">imbalance"),
    )
    for policy, result in results.items():
        made.add_row(
            policy,
            f"{100 * result.hit_rate:.1f} %",
            f"{result.ttft_mean_s:.3f} s",
            f"{result.ttft_p50_s:.3f} s",
            f"{result.ttft_p99_s:.2f} s",
            f"{result.imbalance:.2f}",
        )
    return Group(Text(_title(workload, fleet)), made)


def _count(tokens: int) -> str:
    return f"{tokens / 1e6:.1f} M" if tokens >= 100_000 else f"{tokens:,}"


def _title(workload: Workload, fleet: Fleet) -> str:
    used = workload.utilisation(fleet.prefill_tokens_per_s * fleet.replicas)
    routers = f"{fleet.routers} router{'s' if fleet.routers > 1 else ''}"
    return (
        f"{workload.name}: {len(workload.requests)} requests, "
        f"{_count(workload.prompt_tokens)} prompt tokens in {workload.span_s:.0f} s, "
        f"of which an endless cache would have {100 * workload.most_cached:.1f} %\n"
        f"{fleet.replicas} replicas of {fleet.cache_tokens / 1e6:g} M tokens, "
        f"{fleet.order} first, {routers}; without a cache {100 * used:.0f} % busy"
    ).replace("fcfs first", "first come, first served")


def as_dict(workload: Workload, fleet: Fleet, results: Mapping[str, Result]) -> dict[str, Any]:
    """For scripts."""
    return {
        "workload": {
            "name": workload.name,
            "requests": len(workload.requests),
            "prompt_tokens": workload.prompt_tokens,
            "span_s": workload.span_s,
            "block_size": workload.block_size,
            "endless_cache_hit_rate": workload.most_cached,
            "utilisation": workload.utilisation(fleet.prefill_tokens_per_s * fleet.replicas),
        },
        "fleet": asdict(fleet),
        "policies": {policy: asdict(result) for policy, result in results.items()},
    }
