"""How far the processes of a field grow while it is being broken."""

import psutil

from tests.chaos.field import Field

LIMITS = {
    "router": 16 << 20,
    "replica": 32 << 20,
    "redis": 16 << 20,
}
"""Bytes by which a process of each kind may grow.

Routers and replicas are first looked at before all their threads and caches have been used: a
campaign sees some 1 and 9 MiB of that, and a backlog of a minute without Redis is far less.
Redis keeps keys.STREAM_MAX_BATCHES of six streams, here of some 85 bytes each: 5 MiB, beside what
it holds for its clients and its copy.
"""


class Memory:
    """The largest growth of each kind of process; one that was restarted begins anew."""

    def __init__(self, field: Field) -> None:
        self.growth = dict.fromkeys(LIMITS, 0)
        """Bytes by kind."""
        self._field = field
        self._began: dict[int, int] = {}
        """Bytes at the first look, by process id."""

    @property
    def excess(self) -> dict[str, int]:
        """Of `growth` what is beyond its limit."""
        return {kind: size for kind, size in self.growth.items() if size > LIMITS[kind]}

    async def look(self) -> None:
        """At every process that runs now."""
        for router in self._field.routers:
            self._note("router", router.pid, _rss(router.pid))
        for replica in self._field.replicas:
            self._note("replica", replica.pid, _rss(replica.pid))
        async with self._field.client() as client:
            used = int((await client.info("memory"))["used_memory"])
        self._note("redis", self._field.server.pid, used)

    def _note(self, kind: str, pid: int, size: int) -> None:
        began = self._began.setdefault(pid, size)
        self.growth[kind] = max(self.growth[kind], size - began)


def _rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)
