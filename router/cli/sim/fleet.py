"""The simulated fleet, and one run of a workload on it."""

import argparse
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from radix_rs import Rules, Simulated, SimulatedReplicas
from radix_rs import simulate as play
from router.cli.sim.progress import progress
from router.cli.sim.workload import Workload

ORDERS = ("shortest", "fcfs")
WEIGHTS = (
    *("uncached_weight", "decode_weight", "load_factor"),
    *("cache_threshold", "balance_abs_threshold", "balance_rel_threshold"),
)


@dataclass(frozen=True)
class Fleet:
    """Replicas and routers."""

    replicas: int = 8
    cache_tokens: int = 1_000_000
    prefill_tokens_per_s: float = 20_000.0
    order: str = "shortest"
    chunk_tokens: int = 4096
    routers: int = 1
    lag_s: float = 0.005
    loss: float = 0.0
    seed: int = 7
    weights: Mapping[str, Any] = field(default_factory=dict)
    """Of `radix_rs.Rules`, where they are not the usual."""

    @classmethod
    def from_flags(cls, args: argparse.Namespace) -> "Fleet":
        return cls(
            replicas=args.replicas,
            cache_tokens=args.cache_tokens,
            prefill_tokens_per_s=args.prefill_rate,
            order=args.order,
            chunk_tokens=args.chunk_tokens,
            routers=args.routers,
            lag_s=args.lag_ms / 1000,
            loss=args.loss,
            seed=args.seed,
            weights={name: getattr(args, name) for name in WEIGHTS},
        )

    def model(self) -> SimulatedReplicas:
        return SimulatedReplicas(
            self.replicas,
            cache_tokens=self.cache_tokens,
            order=self.order,
            chunk_tokens=self.chunk_tokens,
            prefill_tokens_per_s=self.prefill_tokens_per_s,
        )


@dataclass(frozen=True)
class Result:
    """What a policy brought; shares from 0 to 1."""

    hit_rate: float
    """Of prompt tokens: what replicas had cached."""
    believed_hit_rate: float
    """The same by the mirrors, when the pick was made."""
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    imbalance: float
    """Most prompt tokens computed on a replica, over the mean of all."""
    snapshots: int

    @classmethod
    def of(cls, simulated: Simulated) -> "Result":
        ttft_s = sorted(simulated.first_token_s)
        prompt_tokens = max(simulated.prompt_tokens, 1)
        computed = simulated.prefilled_tokens
        return cls(
            hit_rate=simulated.cached_tokens / prompt_tokens,
            believed_hit_rate=simulated.matched_tokens / prompt_tokens,
            ttft_mean_s=statistics.fmean(ttft_s),
            ttft_p50_s=ttft_s[len(ttft_s) // 2],
            ttft_p99_s=ttft_s[int(len(ttft_s) * 0.99)],
            imbalance=max(computed) / max(statistics.fmean(computed), 1),
            snapshots=simulated.snapshots,
        )


def simulate(policy: str, workload: Workload, fleet: Fleet) -> Result:
    """Play the workload under `policy`."""
    trace = workload.trace()
    with progress(policy, len(workload.requests)) as report:
        simulated = play(
            trace,
            fleet.model(),
            rules=Rules(policy=policy, **fleet.weights),
            seed=fleet.seed,
            routers=fleet.routers,
            lag_s=fleet.lag_s,
            loss=fleet.loss,
            progress=report,
        )
    return Result.of(simulated)
