"""Does a mirror equal its replica's tree? Block by block, both as of the same batch."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress

import grpc
from grpc import aio

from proto import keys
from proto.errors import UnknownReplica
from proto.prefixlb.v1 import admin_pb2
from proto.prefixlb.v1.admin_pb2 import AuditResponse
from radix_rs import Router, RouterError
from router.fleet import Fleet, Member
from router.mirror import MirrorState, SnapshotFailed, apply_snapshot
from router.redis_link import RedisLink
from router.replica_channel import caller_has_gone, failure
from router.wording import redis_away

AUDIT_TIMEOUT_S = 15.0
"""For one replica; in this time a mirror that is in doubt has taken its snapshot."""

ASK_AGAIN = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED)
"""Said by a replica that sends as many snapshots as it may."""

PAUSE_S = 0.5

QUIET_S = 2 * keys.LEASE_PERIOD_S
"""Without even a heartbeat for this long while Redis is away, no batch is waited for."""

SHOWN_HASHES = 100
SHOWN_NAMES = 16
SHOWN_CHARACTERS = 64


class Overtaken(Exception):
    """The snapshot no longer continues to where the mirror is; another one will."""


class Unheard(Exception):
    """The mirror does not come to where the snapshot stands, as no deltas come."""


class Auditor:
    """Builds each tree a second time, from a snapshot and the batches after it, and compares."""

    def __init__(
        self,
        router: Router,
        fleet: Fleet,
        *,
        hash_key: bytes,
        link: RedisLink,
        timeout_s: float = AUDIT_TIMEOUT_S,
    ) -> None:
        """`link`: the one by which deltas come."""
        self._router = router
        self._fleet = fleet
        self._link = link
        self._hash_key = hash_key
        self._timeout_s = timeout_s
        self._one_at_a_time = asyncio.Lock()

    async def audit(self, replicas: Sequence[str]) -> AsyncIterator[AuditResponse]:
        """One answer a replica, by name; all of the fleet if none is named.

        Raises UnknownReplica before the first answer.
        """
        members = self._fleet.members
        if unknown := sorted(set(replicas) - members.keys()):
            raise UnknownReplica(f"unknown replica {_few(unknown)}; in the fleet: {_few(members)}")
        for member in [members[name] for name in sorted(set(replicas) or members.keys())]:
            async with self._one_at_a_time:
                yield await self._audit(member)

    async def _audit(self, member: Member) -> AuditResponse:
        why = "no snapshot came"
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        return await self._compare(member)
                    except Overtaken as error:
                        why = str(error)
                    except aio.AioRpcError as error:
                        if error.code() not in ASK_AGAIN:
                            raise
                        why = failure(error)
                        await asyncio.sleep(PAUSE_S)
        except Unheard as error:
            why = str(error)
        except TimeoutError:
            why = f"{why}; mirror {member.mirror.state.value} after {self._timeout_s:g} s"
        except (aio.AioRpcError, asyncio.CancelledError, RouterError, SnapshotFailed) as error:
            if caller_has_gone():
                raise
            why = failure(error) if isinstance(error, Exception) else "the replica left the fleet"
        return AuditResponse(
            replica_id=member.state.id, outcome=admin_pb2.AUDIT_OUTCOME_UNDECIDED, detail=why
        )

    async def _compare(self, member: Member) -> AuditResponse:
        name, lease = member.state.id, member.state.lease
        tree = Router(hash_key=self._hash_key)
        tree.add_replica(name, model=lease.model, block_size=lease.block_size)
        batches: asyncio.Queue[bytes] = asyncio.Queue()
        with member.mirror.followed(batches.put_nowait):
            await apply_snapshot(tree, name, member.state.snapshot())
            while not self._level(tree, member):
                _continue(tree, name, await self._next(batches))
            # The mirror goes on meanwhile: the copy follows to where it was seen.
            known = await asyncio.to_thread(self._router.block_set, name)
            if member.mirror.state is not MirrorState.STREAMING:
                raise Overtaken("the mirror came into doubt")
            while (at := tree.mirror(name)).seq < known.seq and at.epoch == known.epoch:
                _continue(tree, name, await self._next(batches))
        if (at.epoch, at.seq) != (known.epoch, known.seq):
            raise Overtaken("the mirror began anew")
        held = await asyncio.to_thread(tree.block_set, name)
        missing, missing_hashes = await asyncio.to_thread(held.not_in, known, SHOWN_HASHES)
        extra, extra_hashes = await asyncio.to_thread(known.not_in, held, SHOWN_HASHES)
        # Which ones the mirror forgot nobody knows, but how many, and their digest.
        equal = not extra and missing == known.forgotten
        return AuditResponse(
            replica_id=name,
            outcome=(admin_pb2.AUDIT_OUTCOME_EQUAL if equal else admin_pb2.AUDIT_OUTCOME_DIFFERENT),
            epoch=known.epoch,
            seq=known.seq,
            tree_blocks=held.count,
            mirror_blocks=known.count,
            forgotten=known.forgotten,
            missing=0 if equal else missing,
            missing_hashes=[] if equal else missing_hashes,
            extra=extra,
            extra_hashes=extra_hashes,
        )

    async def _next(self, batches: asyncio.Queue[bytes]) -> bytes:
        """Raises Unheard once it is in vain to wait."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIET_S):
                    return await batches.get()
            if self._link.away_s:
                raise Unheard(redis_away(self._link.away_s))

    def _level(self, tree: Router, member: Member) -> bool:
        """Whether mirror and copy stand at the same place, and the mirror is not in doubt."""
        copy, mirror = tree.mirror(member.state.id), self._router.mirror(member.state.id)
        streaming = member.mirror.state is MirrorState.STREAMING
        return streaming and (copy.epoch, copy.seq) == (mirror.epoch, mirror.seq)


def _few(names: Iterable[str]) -> str:
    """The first of them, cut: they go into the headers of a status."""
    shown = sorted(names)[:SHOWN_NAMES]
    return ", ".join(name[:SHOWN_CHARACTERS] for name in shown) or "none"


def _continue(tree: Router, name: str, batch: bytes) -> None:
    """Raises Overtaken if `batch` does not follow where `tree` stands, or does not prove it."""
    applied = tree.apply(name, batch)
    if applied.outcome in ("gap", "epoch", "mismatch"):
        raise Overtaken(f"{applied.outcome} at seq {applied.seq} after the snapshot")
