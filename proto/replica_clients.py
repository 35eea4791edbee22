"""Clients of replicas, kept from one request to the next; not too many."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

MAX_IDLE = 256
"""Kept beyond those in use. Replicas come and go, a client does not see which went for good."""

C = TypeVar("C")


class ReplicaClients(Generic[C]):
    """One client an address; threads may share it."""

    def __init__(self, connect: Callable[[str], C], *, max_idle: int = MAX_IDLE) -> None:
        self._connect = connect
        self._max_idle = max_idle
        self._uses: Counter[str] = Counter()
        self._used: dict[str, C] = {}
        self._idle: OrderedDict[str, C] = OrderedDict()
        """Longest unused first."""
        self._lock = Lock()

    def take(self, address: str) -> C:
        """In use until `put_back`. Raises what `connect` does; then it is not."""
        with self._lock:
            if address not in self._used:
                idle = self._idle.pop(address, None)
                self._used[address] = self._connect(address) if idle is None else idle
            self._uses[address] += 1
            return self._used[address]

    def put_back(self, address: str, client: C) -> C | None:
        """A client that is to be closed, if that makes too many."""
        with self._lock:
            if self._used.get(address) is not client:
                return None  # all were taken meanwhile
            self._uses[address] -= 1
            if not self._uses[address]:
                del self._uses[address]
                self._idle[address] = self._used.pop(address)
            if len(self._idle) <= self._max_idle:
                return None
            _, oldest = self._idle.popitem(last=False)
            return oldest

    def take_all(self) -> list[C]:
        """Whether in use or not; none is left."""
        with self._lock:
            clients = [*self._used.values(), *self._idle.values()]
            self._used.clear()
            self._idle.clear()
            self._uses.clear()
            return clients
