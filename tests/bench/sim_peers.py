"""Rules of other routers, as they publish them, for the simulator: they see the replicas exactly.

Where a router keeps books of its own (what it sent where, what it thinks is cached), so do these.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence

from radix_rs import ReplicaState
from router.cli.sim.workload import Workload

PREFILL_TOKENS_PER_S = 20_000.0


class Rule:
    """What they share: the requests by number, and no interest in how they go."""

    def __init__(self, workload: Workload, replicas: int, cache_tokens: int) -> None:
        self.requests = workload.requests
        self.block_size = workload.block_size
        self.replicas = replicas
        self.cache_blocks = cache_tokens // workload.block_size

    def first_token(self, request: int) -> None:
        pass

    def ended(self, request: int) -> None:
        pass

    def uncached(self, request: int, matched_blocks: int) -> int:
        return max(self.requests[request].prompt_tokens - matched_blocks * self.block_size, 0)


def least_requests(states: Sequence[ReplicaState]) -> int:
    return min(
        range(len(states)), key=lambda place: (states[place].in_flight, states[place].requests)
    )


def is_uneven(states: Sequence[ReplicaState]) -> bool:
    """sglang-router and smg, by the defaults of balance_abs_threshold and balance_rel_threshold."""
    requests = [state.in_flight for state in states]
    return max(requests) - min(requests) > 64 and max(requests) > 1.5 * min(requests)


class SglangCacheAware(Rule):
    """`cache_aware` of sglang-router 0.3: a tree of what it sent where, unaware of evictions.

    The replica that the deepest matched node was last sent to, if more than 0.3 of the prompt
    match; else the fewest requests.
    """

    def __init__(self, workload: Workload, replicas: int, cache_tokens: int) -> None:
        super().__init__(workload, replicas, cache_tokens)
        self._sent: dict[int, dict[int, None]] = {}

    def pick(self, now_s: float, request: int, states: Sequence[ReplicaState]) -> int:
        prompt = self.requests[request]
        picked = least_requests(states)
        if not is_uneven(states):
            matched, tenants = 0, None
            for block in prompt.hashes:
                if block not in self._sent:
                    break
                matched, tenants = matched + 1, self._sent[block]
            if tenants and matched * self.block_size > 0.3 * prompt.prompt_tokens:
                picked = next(reversed(tenants))
        for block in prompt.hashes:
            tenants = self._sent.setdefault(block, {})
            tenants.pop(picked, None)
            tenants[picked] = None
        return picked


class SmgEvents(Rule):
    """smg 1.13 with events: most blocks cached, then fewest requests, then the smaller tree.

    Prompts on their way are not counted. Nothing cached anywhere: the fewest requests.
    """

    def pick(self, now_s: float, request: int, states: Sequence[ReplicaState]) -> int:
        if is_uneven(states) or not any(state.matched_blocks for state in states):
            return least_requests(states)
        return min(
            range(len(states)),
            key=lambda place: (
                -states[place].matched_blocks,
                states[place].in_flight,
                states[place].cached_blocks,
            ),
        )


class Dynamo(Rule):
    """Dynamo 1.6 by its defaults: prefill that waits, this prompt's, and active blocks."""

    def __init__(self, workload: Workload, replicas: int, cache_tokens: int) -> None:
        super().__init__(workload, replicas, cache_tokens)
        self._active: list[Counter[int]] = [Counter() for _ in range(replicas)]
        self._at: dict[int, int] = {}

    def pick(self, now_s: float, request: int, states: Sequence[ReplicaState]) -> int:
        blocks = self.requests[request].hashes

        def cost(place: int) -> float:
            state, active = states[place], self._active[place]
            prefill = state.pending_tokens + self.uncached(request, state.matched_blocks)
            new = sum(block not in active for block in blocks)
            return prefill / self.block_size + len(active) + new

        picked = min(range(len(states)), key=cost)
        self._active[picked].update(blocks)
        self._at[request] = picked
        return picked

    def ended(self, request: int) -> None:
        active = self._active[self._at.pop(request)]
        for block in self.requests[request].hashes:
            active[block] -= 1
            if not active[block]:
                del active[block]


class Preble(Rule):
    """E2 (Srivatsa et al., "Preble", 2024): exploit the longest prefix if it is longer than the
    rest of the prompt, else explore; by the prefill sent in three minutes and the requests there.

    It models each cache as an LRU. A replica with half as much work again as the idlest one shares.
    """

    WINDOW_S = 180.0
    DECODE_S = 0.25
    """Of a request there."""

    def __init__(self, workload: Workload, replicas: int, cache_tokens: int) -> None:
        super().__init__(workload, replicas, cache_tokens)
        self._caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]
        self._window: deque[tuple[float, int, float]] = deque()
        self._work_s = [0.0] * replicas

    def pick(self, now_s: float, request: int, states: Sequence[ReplicaState]) -> int:
        while self._window and self._window[0][0] < now_s - self.WINDOW_S:
            _, place, work_s = self._window.popleft()
            self._work_s[place] -= work_s
        blocks = self.requests[request].hashes
        matched = [self._matched(cache, blocks) for cache in self._caches]
        longest = max(matched)
        places: list[int] = list(range(self.replicas))
        if longest * self.block_size > self.uncached(request, longest):
            places = self._with_relief([place for place in places if matched[place] == longest])
        picked = min(
            places,
            key=lambda place: self._work_s[place] + self.DECODE_S * states[place].in_flight,
        )
        work_s = self.uncached(request, matched[picked]) / PREFILL_TOKENS_PER_S
        self._work_s[picked] += work_s
        self._window.append((now_s, picked, work_s))
        self._keep(self._caches[picked], blocks)
        return picked

    def _with_relief(self, holders: list[int]) -> list[int]:
        idlest = min(range(self.replicas), key=self._work_s.__getitem__)
        is_hot = all(self._work_s[place] > 1.5 * self._work_s[idlest] for place in holders)
        known = len(self._window) > 50 * self.replicas
        return [*holders, idlest] if is_hot and known else holders

    @staticmethod
    def _matched(cache: OrderedDict[int, None], blocks: Sequence[int]) -> int:
        for number, block in enumerate(blocks):
            if block not in cache:
                return number
        return len(blocks)

    def _keep(self, cache: OrderedDict[int, None], blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > self.cache_blocks:
            cache.popitem(last=False)


PEERS: dict[str, Callable[[Workload, int, int], Rule]] = {
    "smg events": SmgEvents,
    "sglang cache_aware": SglangCacheAware,
    "Preble E2": Preble,
    "Dynamo": Dynamo,
}
