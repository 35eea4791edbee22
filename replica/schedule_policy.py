"""Orders in which prompts are computed, chunk by chunk."""

from collections import defaultdict
from collections.abc import Callable
from typing import ClassVar, Protocol

from proto.prefixlb.v1 import delta_pb2
from replica.request import Request, RequestState

AGING = 0.1
"""A waiting prompt counts as smaller by this part of what could be computed meanwhile."""

MAX_LPM_WAITING = 128
"""With more than these, arrival decides: what is cached changes faster than they are served."""


class SchedulePolicy(Protocol):
    order: ClassVar[delta_pb2.PrefillOrder.ValueType]
    """As routers know it: whether a prompt that is short goes before those that are there."""

    def arrange(
        self, requests: list[Request], now_s: float, prefill_tokens_per_s: float
    ) -> list[Request]:
        """The first to go first. All are looked up; some have begun, the others wait."""


class Shortest:
    """Least left to compute first, less what was waited: short ones do not starve a long one."""

    order: ClassVar[delta_pb2.PrefillOrder.ValueType] = delta_pb2.PREFILL_ORDER_SHORTEST

    def arrange(
        self, requests: list[Request], now_s: float, prefill_tokens_per_s: float
    ) -> list[Request]:
        forgiven_per_s = AGING * prefill_tokens_per_s

        def size(request: Request) -> tuple[float, float]:
            forgiven = forgiven_per_s * (now_s - request.arrived_s)
            return request.sequence.uncached - forgiven, request.arrived_s

        return sorted(requests, key=size)


class FirstComeFirstServed:
    order: ClassVar[delta_pb2.PrefillOrder.ValueType] = delta_pb2.PREFILL_ORDER_FCFS

    def arrange(
        self, requests: list[Request], now_s: float, prefill_tokens_per_s: float
    ) -> list[Request]:
        return _by_arrival(requests)


class LongestPrefix:
    """Longest cached prefix first, so that it is used before it is evicted. One can starve.

    Those that have begun go on first: they hold slots. So it is in the next policy.
    """

    order: ClassVar[delta_pb2.PrefillOrder.ValueType] = delta_pb2.PREFILL_ORDER_FCFS

    def arrange(
        self, requests: list[Request], now_s: float, prefill_tokens_per_s: float
    ) -> list[Request]:
        begun, waiting = _by_state(_by_arrival(requests))
        if len(waiting) <= MAX_LPM_WAITING:
            waiting.sort(key=lambda request: -request.sequence.cached)
        return begun + waiting


class DepthFirst:
    """Through the tree, first where most requests wait, below a node before at it. One can starve.

    Who shares a prefix goes one after the other, and the prefix is needed no longer than that.
    """

    order: ClassVar[delta_pb2.PrefillOrder.ValueType] = delta_pb2.PREFILL_ORDER_FCFS

    def __init__(self, parent: Callable[[int], int | None]) -> None:
        """`parent`: of a node of the tree, None of a root."""
        self._parent = parent

    def arrange(
        self, requests: list[Request], now_s: float, prefill_tokens_per_s: float
    ) -> list[Request]:
        begun, waiting = _by_state(_by_arrival(requests))
        # In one edge those who match more are below the others.
        waiting.sort(key=lambda request: -request.sequence.cached)
        at: dict[int, list[Request]] = defaultdict(list)
        for request in waiting:
            at[request.sequence.node if request.sequence.cached else _NOWHERE].append(request)
        children = self._children(list(at))
        nodes = _preorder(children, key=lambda node: 0)
        weight = {node: len(at[node]) for node in nodes}
        for node in reversed(nodes):
            weight[node] += sum(weight[child] for child in children[node])
        # Read backwards, parents first and light children first is children first, heavy ones
        # before.
        backwards = _preorder(children, key=lambda node: weight[node])
        return begun + [request for node in reversed(backwards) for request in at[node]]

    def _children(self, nodes: list[int]) -> dict[int, list[int]]:
        """Of all nodes above these; the roots are those of `_NOWHERE`."""
        children: dict[int, list[int]] = defaultdict(list)
        seen = {_NOWHERE}
        for node in nodes:
            while node not in seen:
                seen.add(node)
                above = self._parent(node)
                parent = _NOWHERE if above is None else above
                children[parent].append(node)
                node = parent
        return children


_NOWHERE = 0
"""Above all roots, in place of a handle; who matches nothing waits here."""


def make_schedule_policy(name: str, parent: Callable[[int], int | None]) -> SchedulePolicy:
    """`parent`: of a node of the tree, None of a root."""
    policies: dict[str, Callable[[], SchedulePolicy]] = {
        "shortest": Shortest,
        "fcfs": FirstComeFirstServed,
        "lpm": LongestPrefix,
        "dfs-weight": lambda: DepthFirst(parent),
    }
    return policies[name]()


def _by_arrival(requests: list[Request]) -> list[Request]:
    return sorted(requests, key=lambda request: request.arrived_s)


def _by_state(requests: list[Request]) -> tuple[list[Request], list[Request]]:
    """Those that have begun, and those that wait."""
    begun = [request for request in requests if request.state is not RequestState.WAITING]
    return begun, [request for request in requests if request.state is RequestState.WAITING]


def _preorder(children: dict[int, list[int]], key: Callable[[int], int]) -> list[int]:
    """From `_NOWHERE` down, parents first; of siblings the smallest `key` first."""
    # No recursion: a path may have a node for each token.
    nodes, stack = [], [_NOWHERE]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack += sorted(children[node], key=key, reverse=True)
    return nodes
