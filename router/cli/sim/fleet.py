"""The simulated fleet, and one run of a workload on it."""

import argparse
import statistics
from dataclasses import asdict, dataclass

from radix_rs import Simulated, SimulatedReplicas
from radix_rs import simulate as play
from router.cli.sim.progress import progress
from router.cli.sim.workload import Workload

ORDERS = ("shortest", "fcfs")


@dataclass(frozen=True)
class Weights:
    """As of `radix_rs.Router`."""

    k: float = 1.75
    decode_weight: float = 1.0
    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    load_factor: float = 1.25


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
    weights: Weights = Weights()

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
            weights=Weights(
                k=args.uncached_weight,
                decode_weight=args.decode_weight,
                cache_threshold=args.cache_threshold,
                balance_abs_threshold=args.balance_abs_threshold,
                balance_rel_threshold=args.balance_rel_threshold,
                load_factor=args.load_factor,
            ),
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
            policy=policy,
            **asdict(fleet.weights),
            seed=fleet.seed,
            routers=fleet.routers,
            lag_s=fleet.lag_s,
            loss=fleet.loss,
            progress=report,
        )
    return Result.of(simulated)
