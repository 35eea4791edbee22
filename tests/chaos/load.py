"""Steady load on all routers, and what became of each request."""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from proto.answer import Route
from proto.client import AsyncClient
from proto.errors import DeadlineExceeded, LBError, Overloaded, Unavailable
from router.cli.child import Child
from tests.tiny_model import VOCAB_SIZE

DEADLINE_S = 45.0
DEADLINE_SLACK_S = 1.0
PAUSE_S = 0.05
RECONNECT_S = 2.0
"""A client reaches its router again within this time of the router's return."""

BROKEN = "broken after it had begun"
"""Otherwise than a router ends it when its replica dies, or though nothing was done to either."""

Prompt = tuple[int, ...]


def prompts(rng: random.Random, *, families: int = 8, each: int = 6) -> list[Prompt]:
    """Families of prompts that share their first half; together more than a replica can cache."""

    def tokens(count: int) -> Prompt:
        return tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(count))

    return [
        head + tokens(rng.randrange(16, 96))
        for head in (tokens(96) for _ in range(families))
        for _ in range(each)
    ]


@dataclass
class Outcomes:
    """Counts by what became of requests; `violations` says what must not have happened."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, outcome: str, violation: str = "") -> None:
        self.counts[outcome] += 1
        if violation:
            self.violations.append(f"{outcome}: {violation}")


class Load:
    """Workers that ask one router each, one request after another, and know the right answers."""

    def __init__(
        self, routers: Sequence[Child], asked: Sequence[Prompt], *, workers: int, seed: int
    ) -> None:
        """`workers` for each router."""
        self.outcomes = Outcomes()
        self.answers: dict[Prompt, tuple[int, ...]] = {}
        self._disturbed_until_s: dict[str, float] = {}
        """Names of processes that are or were themselves being broken, and until when."""
        self._prompts = asked
        self._workers = [
            (router, random.Random(f"{seed} {router.name} {number}"))
            for router in routers
            for number in range(workers)
        ]

    async def learn(self, address: str) -> None:
        """The right answers, from one replica before anything is broken."""
        async with AsyncClient(address) as client:
            for prompt in self._prompts:
                answer = await client.complete(prompt, max_tokens=8, ignore_eos=True)
                self.answers[prompt] = answer.token_ids

    @contextmanager
    def disturbing(self, name: str) -> Iterator[None]:
        """In the block this router or replica is being broken, and with it what it has begun."""
        self._disturbed_until_s[name] = math.inf
        try:
            yield
        finally:
            self._disturbed_until_s[name] = time.monotonic()

    def _disturbed(self, name: str, since_s: float) -> bool:
        """Whether it was being broken at any time since then."""
        return self._disturbed_until_s.get(name, -math.inf) >= since_s

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for router, rng in self._workers:
                tasks.create_task(self._work(router, rng))

    async def _work(self, router: Child, rng: random.Random) -> None:
        async with AsyncClient(router.address) as client:
            while True:
                cut_off = await self._ask(router, client, rng.choice(self._prompts))
                if cut_off:
                    await self._reconnect(router, client)
                await asyncio.sleep(rng.uniform(0, 2 * PAUSE_S))

    async def _reconnect(self, router: Child, client: AsyncClient) -> None:
        """Dial until `client` is connected: calls before that would end with the broken router."""
        connected = asyncio.create_task(client.channel.channel_ready())
        try:
            while self._disturbed(router.name, time.monotonic()) and not connected.done():
                await asyncio.wait((connected,), timeout=PAUSE_S)
            await asyncio.wait_for(connected, RECONNECT_S)
        except TimeoutError:
            self.outcomes.add("kept out", f"for {RECONNECT_S} s after {router.name} was back")
        finally:
            connected.cancel()

    async def _ask(self, router: Child, client: AsyncClient, prompt: Prompt) -> bool:
        """Ask once. True if the router's own trouble ended it."""
        began_s = time.monotonic()
        route: Route | None = None
        """Of an answer that has begun."""
        outcome, violation = "answered", ""
        answer = client.generate(prompt, max_tokens=8, ignore_eos=True, timeout_s=DEADLINE_S)
        try:
            async for _ in answer:
                route = await answer.route()
            if answer.result.token_ids != self.answers[prompt]:
                outcome, violation = "wrong", f"{answer.result.token_ids}"
        except LBError as error:
            if self._disturbed(router.name, began_s):
                outcome = "cut off with its router"
            elif (
                route and isinstance(error, Unavailable) and self._disturbed(route.replica, began_s)
            ):
                outcome = "failed after it had begun"
            else:
                names = {DeadlineExceeded: "expired", Overloaded: "refused"}
                outcome = names.get(type(error), BROKEN if route else "lost")
                violation = f"{type(error).__name__}: {error}"
        if (took_s := time.monotonic() - began_s) > DEADLINE_S + DEADLINE_SLACK_S:
            violation = violation or f"ended {took_s - DEADLINE_S:.1f} s past its deadline"
        self.outcomes.add(outcome, violation)
        return outcome != "answered" and self._disturbed(router.name, began_s)
