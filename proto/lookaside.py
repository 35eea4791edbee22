"""Asks a router where a prompt should go, and then the replica itself: answers pass by the router.

    async with AsyncLookaside("127.0.0.1:30000") as lookaside:
        async with lookaside.picked("Hello", max_tokens=8) as (replica, route):
            result = await replica.complete("Hello", max_tokens=8)
            print(route.replica, route.matched_tokens, result.text)

The prompt counts as in flight there until the end of the block, and how the block ended counts for
the replica's circuit breaker. `Lookaside` is the same without an event loop.

Both take `proto.credentials.Credentials` for the router, and others for the replicas. Without
others replicas are shown the same certificate and must have one of the same authorities, for the
host of their address; they get no token, which is the router's alone to know.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Self, Unpack

import grpc
from grpc import aio

from proto.answer import Route
from proto.client import AsyncClient, Client
from proto.credentials import IN_CLEAR, Credentials
from proto.enum_names import short_name
from proto.errors import LBError, from_status
from proto.prefixlb.v1.admin_pb2 import PickReason, PickRequest, PickResponse, ReleaseRequest
from proto.prefixlb.v1.admin_pb2_grpc import AdminStub
from proto.replica_clients import ReplicaClients
from proto.request import Options, Prompt, build_request

LEASE_S = 300.0
"""For how long a pick counts as in flight if its caller dies, unless the caller says otherwise."""

ADMIN_TIMEOUT_S = 5.0


def _for_replicas(router: Credentials, replicas: Credentials | None) -> Credentials:
    return replace(router, token="", tls_server_name="") if replicas is None else replicas


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

    def __init__(
        self,
        router_address: str,
        credentials: Credentials = IN_CLEAR,
        *,
        replica_credentials: Credentials | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        """Connects with the first pick, inside a running event loop.

        Raises InvalidFile if a file of the credentials is no good.
        """
        self._router = AsyncClient(router_address, credentials)
        self._metadata = aio.Metadata(*credentials.metadata)
        self._admin = AdminStub(self._router.channel)
        self._lease_s = lease_s
        to_replicas = _for_replicas(credentials, replica_credentials)
        self._replicas = ReplicaClients(partial(AsyncClient, credentials=to_replicas))

    @asynccontextmanager
    async def picked(
        self, prompt: Prompt, **options: Unpack[Options]
    ) -> AsyncIterator[tuple[AsyncClient, Route]]:
        """A client of the picked replica, and why it was. Raises an LBError if there is none."""
        asked = _asked(prompt, options, self._lease_s)
        with from_status():
            pick = await self._admin.Pick(asked, timeout=ADMIN_TIMEOUT_S, metadata=self._metadata)
        ended: BaseException | None = None
        try:
            async with self._replica(pick.address) as replica:
                yield replica, _route(pick)
        except BaseException as error:
            ended = error
            raise
        finally:
            await self._release(_released(pick, ended))

    @asynccontextmanager
    async def _replica(self, address: str) -> AsyncIterator[AsyncClient]:
        client = self._replicas.take(address)
        try:
            yield client
        finally:
            if (surplus := self._replicas.put_back(address, client)) is not None:
                await surplus.close()

    async def _release(self, released: ReleaseRequest) -> None:
        try:
            await self._admin.Release(released, timeout=ADMIN_TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError:
            return  # the lease runs out by itself

    async def close(self) -> None:
        """End all connections, and what still runs on them."""
        for client in (self._router, *self._replicas.take_all()):
            await client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Lookaside:
    """`AsyncLookaside` for programs without an event loop; threads may share one."""

    def __init__(
        self,
        router_address: str,
        credentials: Credentials = IN_CLEAR,
        *,
        replica_credentials: Credentials | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        """Connects with the first pick.

        Raises InvalidFile if a file of the credentials is no good.
        """
        self._router = Client(router_address, credentials)
        self._metadata = credentials.metadata
        self._admin = AdminStub(self._router.channel)
        self._lease_s = lease_s
        to_replicas = _for_replicas(credentials, replica_credentials)
        self._replicas = ReplicaClients(partial(Client, credentials=to_replicas))

    @contextmanager
    def picked(self, prompt: Prompt, **options: Unpack[Options]) -> Iterator[tuple[Client, Route]]:
        """A client of the picked replica, and why it was. Raises an LBError if there is none."""
        asked = _asked(prompt, options, self._lease_s)
        with from_status():
            pick = self._admin.Pick(asked, timeout=ADMIN_TIMEOUT_S, metadata=self._metadata)
        ended: BaseException | None = None
        try:
            with self._replica(pick.address) as replica:
                yield replica, _route(pick)
        except BaseException as error:
            ended = error
            raise
        finally:
            self._release(_released(pick, ended))

    @contextmanager
    def _replica(self, address: str) -> Iterator[Client]:
        client = self._replicas.take(address)
        try:
            yield client
        finally:
            if (surplus := self._replicas.put_back(address, client)) is not None:
                surplus.close()

    def _release(self, released: ReleaseRequest) -> None:
        try:
            self._admin.Release(released, timeout=ADMIN_TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError:
            return  # the lease runs out by itself

    def close(self) -> None:
        """End all connections, and what still runs on them."""
        for client in (self._router, *self._replicas.take_all()):
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
