"""What a run of the workload amounts to, two runs side by side, and the verdict."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from proto.answer import Result
from router.cli import console
from router.cli.console import percent
from router.cli.demo.play import Played


@dataclass(frozen=True)
class ReplicaTotals:
    """What one replica did during a run."""

    replica: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    evicted_tokens: int
    mirror_blocks: int
    tree_blocks: int
    mirror_equals_tree: bool
    """Once quiet: same epoch, seq, number of blocks and digest."""


@dataclass(frozen=True)
class Run:
    """The workload under one policy."""

    policy: str
    duration_s: float
    played: Sequence[Played]
    replicas: Sequence[ReplicaTotals]

    @property
    def results(self) -> list[Result]:
        return [played.result for played in self.played if played.result]

    @property
    def failed(self) -> int:
        return len(self.played) - len(self.results)

    @property
    def prompt_tokens(self) -> int:
        return sum(result.prompt_tokens for result in self.results)

    @property
    def cached_tokens(self) -> int:
        return sum(result.cached_tokens for result in self.results)

    @property
    def hit_rate(self) -> float:
        """Prompt tokens reused rather than computed, of all prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def prefilled_tokens(self) -> int:
        return sum(totals.prefilled_tokens for totals in self.replicas)

    @property
    def evicted_tokens(self) -> int:
        return sum(totals.evicted_tokens for totals in self.replicas)

    @property
    def mean_ttft_s(self) -> float:
        times = self._ttfts_s()
        return sum(times) / len(times) if times else math.nan

    @property
    def p99_ttft_s(self) -> float:
        """By nearest rank."""
        times = self._ttfts_s()
        return times[math.ceil(0.99 * len(times)) - 1] if times else math.nan

    def _ttfts_s(self) -> list[float]:
        return sorted(result.ttft_s for result in self.results if result.ttft_s is not None)

    def as_dict(self) -> dict[str, Any]:
        """For scripts."""
        figures = ("policy", "failed", "prompt_tokens", "cached_tokens", "hit_rate", "mean_ttft_s")
        more = ("p99_ttft_s", "prefilled_tokens", "evicted_tokens", "duration_s")
        return {
            **{name: getattr(self, name) for name in (*figures, *more)},
            "requests": len(self.played),
            "replicas": [vars(totals) for totals in self.replicas],
        }


@dataclass(frozen=True)
class Claim:
    """One thing that must hold for the demo to succeed."""

    key: str
    """Its name for scripts."""
    sentence: str
    holds: bool


def verdict(ours: Run, other: Run) -> tuple[Claim, ...]:
    """All of them."""
    runs = (ours, other)
    return (
        Claim(
            "every_request_answered",
            "every request was answered",
            all(run.failed == 0 for run in runs),
        ),
        Claim(
            "reuses_more_than_baseline",
            f"{ours.policy} reuses more of the prompts than {other.policy}",
            ours.hit_rate > other.hit_rate,
        ),
        Claim(
            "pool_evicted",
            "the pool was small enough to evict",
            all(run.evicted_tokens > 0 for run in runs),
        ),
        Claim(
            "mirrors_equal_trees",
            "every router mirror equals its replica's tree",
            all(totals.mirror_equals_tree for run in runs for totals in run.replicas),
        ),
    )


def _p99_label(run: Run) -> str:
    """By nearest rank, the p99 of fewer than a hundred is the largest."""
    answered = len(run.results)
    return f"p99 time to first token{f' (slowest of {answered})' if answered < 100 else ''}"


def show(out: Console, ours: Run, other: Run) -> None:
    """Both runs side by side, each replica's part, and the verdict."""
    rows: list[tuple[str, Callable[[Run], str]]] = [
        ("token hit rate", lambda run: percent(run.cached_tokens, run.prompt_tokens)),
        ("mean time to first token", lambda run: f"{run.mean_ttft_s:.2f} s"),
        (_p99_label(ours), lambda run: f"{run.p99_ttft_s:.2f} s"),
        ("prompt tokens", lambda run: str(run.prompt_tokens)),
        ("prefill tokens computed", lambda run: str(run.prefilled_tokens)),
        ("tokens evicted", lambda run: str(run.evicted_tokens)),
        ("the whole workload", lambda run: f"{run.duration_s:.1f} s"),
    ]
    side_by_side = console.table(out, "", f">{ours.policy}", f">{other.policy}")
    for name, figure in rows:
        side_by_side.add_row(name, figure(ours), figure(other))
    out.print()
    out.print(side_by_side)

    parts = console.table(
        out,
        *("policy", "replica", ">requests", ">prompt", ">cached", ">prefilled", ">evicted"),
        *(">tree blocks", ">mirror blocks", "mirror"),
    )
    for run in (ours, other):
        for totals in run.replicas:
            parts.add_row(
                run.policy,
                totals.replica,
                str(totals.requests),
                str(totals.prompt_tokens),
                str(totals.cached_tokens),
                str(totals.prefilled_tokens),
                str(totals.evicted_tokens),
                str(totals.tree_blocks),
                str(totals.mirror_blocks),
                "equals tree" if totals.mirror_equals_tree else "DIFFERS",
            )
    out.print()
    out.print(parts)
    out.print()
    for claim in verdict(ours, other):
        out.print(f"{'[green]yes[/] ' if claim.holds else '[bold red]NO[/]  '} {claim.sentence}")
