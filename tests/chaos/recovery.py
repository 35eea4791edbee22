"""How long after a fault all mirrors follow again, and whether audits say that they are equal."""

import asyncio
import time
from collections.abc import Sequence

from grpc import aio

from proto.prefixlb.v1 import admin_pb2
from proto.prefixlb.v1.admin_pb2_grpc import AdminStub
from router.cli.child import Child

GIVE_UP_S = 60.0


class Unrecovered(Exception):
    """The mirrors are not what they should be; the message says which and how."""


async def recovered(routers: Sequence[Child], replicas: Sequence[Child]) -> float:
    """Seconds until every router follows every replica, each batch proving its mirror.

    Raises Unrecovered after GIVE_UP_S.
    """
    began_s = time.monotonic()
    for router in routers:
        async with aio.insecure_channel(router.address) as channel:
            while why := await _not_following(channel, replicas):
                if time.monotonic() - began_s > GIVE_UP_S:
                    raise Unrecovered(f"{router.name}: {why}")
                await asyncio.sleep(0.02)
    return time.monotonic() - began_s


async def audited(routers: Sequence[Child]) -> float:
    """Seconds until audits of all routers have said equal. Raises Unrecovered if one does not."""
    began_s = time.monotonic()
    for router in routers:
        async with aio.insecure_channel(router.address) as channel:
            async for each in AdminStub(channel).Audit(admin_pb2.AuditRequest()):
                if each.outcome != admin_pb2.AUDIT_OUTCOME_EQUAL:
                    raise Unrecovered(f"{router.name}: {each}".replace("\n", " "))
    return time.monotonic() - began_s


async def _not_following(channel: aio.Channel, replicas: Sequence[Child]) -> str:
    """What is amiss at one router, or nothing."""
    try:
        listed = await AdminStub(channel).ListReplicas(admin_pb2.ListReplicasRequest(), timeout=2.0)
    except aio.AioRpcError as error:
        return error.details() or error.code().name
    used = (status for status in listed.replicas if not status.refusal)
    seen = {status.lease.replica_id: status for status in used}
    for replica in replicas:
        status = seen.get(replica.name)
        if status is None:
            return f"{replica.name} is not in the fleet"
        if not status.live or status.mirror != admin_pb2.MIRROR_STATE_STREAMING:
            return f"{replica.name} live={status.live} mirror={status.mirror}"
        if status.epoch != status.lease.epoch:
            return f"{replica.name} mirror of another epoch"
    return ""
