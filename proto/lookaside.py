"""Asks a router where a prompt should go, and then the replica itself: answers pass by the router.

    async with AsyncLookaside("127.0.0.1:30000") as lookaside:
        async with lookaside.picked("Hello", max_tokens=8) as (replica, route):
            result = await replica.complete("Hello", max_tokens=8)
            print(route.replica, route.matched_tokens, result.text)

The prompt counts as in flight there until the end of the block, and how the block ended counts for
the replica's circuit breaker. `Lookaside` is the same without an event loop.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Self, Unpack

import grpc

from proto.answer import Route
from proto.client import AsyncClient, Client
from proto.enum_names import short_name
from proto.errors import LBError, from_status
from proto.prefixlb.v1.admin_pb2 import PickReason, PickRequest, PickResponse, ReleaseRequest
from proto.prefixlb.v1.admin_pb2_grpc import AdminStub
from proto.request import Options, Prompt, build_request

LEASE_S = 300.0
"""For how long a pick counts as in flight if its caller dies, unless the caller says otherwise."""

ADMIN_TIMEOUT_S = 5.0

MAX_REPLICAS = 256
"""Connections kept; more is only what blocks that run need."""


def _asked(prompt: Prompt, options: Options, lease_s: float) -> PickRequest:
    return PickRequest(request=build_request(prompt, options), lease_s=lease_s)


def _route(pick: PickResponse) -> Route:
    return Route(pick.replica_id, pick.matched_tokens, short_name(PickReason, pick.reason))


def _released(pick: PickResponse, error: BaseException | None) -> ReleaseRequest:
    code = grpc.StatusCode.OK
    if error is not None:
        code = error.code if isinstance(error, LBError) else grpc.StatusCode.CANCELLED
    return ReleaseRequest(ticket=pick.ticket, code=code.value[0])


class AsyncLookaside:
    """One connection to a router, one to each replica it names."""

    def __init__(self, router_address: str, *, lease_s: float = LEASE_S) -> None:
        """Connects with the first pick, inside a running event loop."""
        self._router = AsyncClient(router_address)
        self._admin = AdminStub(self._router.channel)
        self._lease_s = lease_s
        self._replicas: OrderedDict[str, AsyncClient] = OrderedDict()
        self._uses: dict[str, int] = {}

    @asynccontextmanager
    async def picked(
        self, prompt: Prompt, **options: Unpack[Options]
    ) -> AsyncIterator[tuple[AsyncClient, Route]]:
        """A client of the picked replica, and why it was. Raises an LBError if there is none."""
        asked = _asked(prompt, options, self._lease_s)
        with from_status():
            pick = await self._admin.Pick(asked, timeout=ADMIN_TIMEOUT_S)
        ended: BaseException | None = None
        try:
            self._uses[pick.address] = self._uses.get(pick.address, 0) + 1
            yield self._replica(pick.address), _route(pick)
        except BaseException as error:
            ended = error
            raise
        finally:
            await self._done(pick, ended)

    def _replica(self, address: str) -> AsyncClient:
        if address not in self._replicas:
            self._replicas[address] = AsyncClient(address)
        self._replicas.move_to_end(address)
        return self._replicas[address]

    async def _done(self, pick: PickResponse, ended: BaseException | None) -> None:
        self._uses[pick.address] -= 1
        if not self._uses[pick.address]:
            del self._uses[pick.address]
        idle = [address for address in self._replicas if address not in self._uses]
        for address in idle[: max(0, len(self._replicas) - MAX_REPLICAS)]:
            await self._replicas.pop(address).close()
        try:
            await self._admin.Release(_released(pick, ended), timeout=ADMIN_TIMEOUT_S)
        except grpc.RpcError:
            return  # the lease runs out by itself

    async def close(self) -> None:
        """End all connections."""
        for client in (self._router, *self._replicas.values()):
            await client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Lookaside:
    """`AsyncLookaside` for programs without an event loop; for one thread at a time."""

    def __init__(self, router_address: str, *, lease_s: float = LEASE_S) -> None:
        """Connects with the first pick."""
        self._router = Client(router_address)
        self._admin = AdminStub(self._router.channel)
        self._lease_s = lease_s

    @contextmanager
    def picked(self, prompt: Prompt, **options: Unpack[Options]) -> Iterator[tuple[Client, Route]]:
        """A client of the picked replica, and why it was. Raises an LBError if there is none."""
        asked = _asked(prompt, options, self._lease_s)
        with from_status():
            pick = self._admin.Pick(asked, timeout=ADMIN_TIMEOUT_S)
        ended: BaseException | None = None
        try:
            with Client(pick.address) as replica:
                yield replica, _route(pick)
        except BaseException as error:
            ended = error
            raise
        finally:
            self._release(pick, ended)

    def _release(self, pick: PickResponse, ended: BaseException | None) -> None:
        try:
            self._admin.Release(_released(pick, ended), timeout=ADMIN_TIMEOUT_S)
        except grpc.RpcError:
            return  # the lease runs out by itself

    def close(self) -> None:
        """End the connection to the router."""
        self._router.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
