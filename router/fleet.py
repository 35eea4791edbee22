"""Who is there, who can be picked, and what each replica needs while it is there."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from grpc import aio

from proto import keys
from proto.errors import Unavailable, UnknownModel
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.text import TextCodec
from radix_rs import HASH_VERSION, Router, RouterError
from router.mirror import Mirror
from router.replica_state import Health, Liveness, ReplicaState
from router.subscriber import Subscriber
from router.tokenizers import Tokenizers

log = logging.getLogger(__name__)

PROBE_PERIOD_S = 1.0
SUSPECT_PROBE_PERIOD_S = 0.2
PROBE_FAILURES = 2
"""Checks without an answer that make a replica silent, and suspect."""

GIVE_UP_S = keys.LEASE_TTL_S
"""Silent for this long, a replica loses the requests that wait for their first message."""

VANISHED_S = 10.0
"""Without a sign of life for this long, be it a health check or a token, its answers end too: a
machine that vanished closes no connection."""


@dataclass
class Member:
    """A replica of the view with what belongs to it."""

    state: ReplicaState
    mirror: Mirror
    tasks: tuple[asyncio.Task[None], ...]


@dataclass(frozen=True)
class Refusal:
    """Why a replica of the view is not used."""

    lease: Lease
    reason: str
    """For a label: "lease", "hash_version", "hash_secret" or "block_size"."""
    detail: str


class Fleet:
    """The replicas of the last view; all changes of membership and liveness pass through here."""

    def __init__(
        self,
        *,
        router: Router,
        key_check: int,
        subscriber: Subscriber,
        tokenizers: Tokenizers,
        tasks: asyncio.TaskGroup,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`key_check`: of the cluster secret's key; a replica of another secret is refused."""
        self._router = router
        self._key_check = key_check
        self._subscriber = subscriber
        self._tokenizers = tokenizers
        self._tasks = tasks
        self._rng = rng
        self._clock = clock
        self.members: dict[str, Member] = {}
        self.refusals: dict[str, Refusal] = {}
        self._known_models: set[str] = set()

    async def follow(self, views: AsyncIterator[Mapping[str, Lease]]) -> None:
        """Keep up with a source's views until cancelled."""
        async for view in views:
            self.update(view)

    def update(self, view: Mapping[str, Lease]) -> None:
        """Make the members those of `view`."""
        for replica, member in list(self.members.items()):
            lease = view.get(replica)
            if lease is None or not _same_replica(lease, member.state.lease):
                self._leave(member, "its lease ended" if lease is None else "it changed")
        self.refusals = {name: r for name, r in self.refusals.items() if name in view}
        for replica, lease in view.items():
            if replica in self.members:
                self.members[replica].state.lease = lease
                self.members[replica].mirror.epoch_is(lease.epoch)
            else:
                self._join(lease)

    def replica(self, replica: str) -> ReplicaState:
        """State of a member."""
        return self.members[replica].state

    def answers(self, replica: str) -> bool:
        """Whether it is a member and its last health checks were answered, whatever they said."""
        member = self.members.get(replica)
        return member is not None and member.state.silent_checks < PROBE_FAILURES

    def model(self, asked: str) -> str:
        """The model a request means. Raises UnknownModel or Unavailable."""
        served = {member.state.lease.model for member in self.members.values()}
        if asked in served:
            return asked
        if (asked and asked in self._known_models) or not served:
            of_model = f" of model {asked!r}" if asked else ""
            raise Unavailable(f"no replica{of_model} is there")
        if not asked and len(served) == 1:
            return served.pop()
        wanted = f"unknown model {asked!r}" if asked else "the request names no model"
        raise UnknownModel(f"{wanted}; served: {', '.join(sorted(served))}")

    def codec(self, model: str) -> TextCodec | None:
        """The model's tokenizer; None while it is unknown, or while its replicas disagree."""
        states = [m.state for m in self.members.values() if m.state.lease.model == model]
        digests = {state.lease.tokenizer_digest for state in states}
        return next((s.codec for s in states if s.codec), None) if len(digests) == 1 else None

    def suspect(self, state: ReplicaState, why: str) -> None:
        """Do not pick it until a health check succeeds."""
        if state.liveness is Liveness.LIVE and self._is_member(state):
            log.warning("replica suspect replica=%s why=%r", state.id, why)
            state.liveness = Liveness.SUSPECT
            state.suspected.set()
            self._router.set_eligible(state.id, False)

    def _trust(self, state: ReplicaState) -> None:
        log.info("replica answers again replica=%s", state.id)
        state.liveness = Liveness.LIVE
        state.suspected.clear()
        self._router.set_eligible(state.id, True)

    def _is_member(self, state: ReplicaState) -> bool:
        member = self.members.get(state.id)
        return member is not None and member.state is state

    def _join(self, lease: Lease) -> None:
        name = lease.replica_id
        if not (lease.model and lease.address):
            self._refuse(Refusal(lease, "lease", "its lease names no model or no address"))
            return
        if lease.hash_version != HASH_VERSION:
            detail = f"hash version {lease.hash_version}, this router has {HASH_VERSION}"
            self._refuse(Refusal(lease, "hash_version", detail))
            return
        if lease.key_check != self._key_check:
            detail = "its cluster secret is not this router's: see --hash-secret-file on both"
            self._refuse(Refusal(lease, "hash_secret", detail))
            return
        try:
            self._router.add_replica(name, model=lease.model, block_size=lease.block_size)
        except RouterError as error:
            self._refuse(Refusal(lease, "block_size", str(error)))
            return
        self.refusals.pop(name, None)
        self._known_models.add(lease.model)
        state = ReplicaState(lease)
        mirror = Mirror(name, router=self._router, snapshot=state.snapshot, rng=self._rng)
        tasks = (
            self._tasks.create_task(mirror.run(), name=f"mirror {name}"),
            self._tasks.create_task(self._probe(state, mirror), name=f"probe {name}"),
            self._tasks.create_task(self._tokenizers.provide(state), name=f"tokenizer {name}"),
        )
        self.members[name] = Member(state, mirror, tasks)
        self._subscriber.add(name, mirror)
        self._router.set_eligible(name, True)
        log.info(
            "replica joins replica=%s address=%s model=%s epoch=%016x",
            name,
            lease.address,
            lease.model,
            lease.epoch,
        )

    def _refuse(self, refusal: Refusal) -> None:
        name = refusal.lease.replica_id
        if name not in self.refusals:
            log.error("replica refused replica=%s why=%r", name, refusal.detail)
        self.refusals[name] = refusal

    def _leave(self, member: Member, why: str) -> None:
        state = member.state
        log.info("replica leaves replica=%s why=%r", state.id, why)
        del self.members[state.id]
        self._subscriber.remove(state.id)
        self._router.remove_replica(state.id)
        for task in member.tasks:
            task.cancel()
        self._tasks.create_task(state.close(), name=f"close {state.id}")

    async def _probe(self, state: ReplicaState, mirror: Mirror) -> None:
        """Check its health for as long as it is a member."""
        heard_s = self._clock()
        while True:
            await self._pause(state)
            health = await state.health()
            if health is not Health.SILENT:
                state.silent_checks, heard_s = 0, self._clock()
            match health:
                case Health.SERVING if state.liveness is Liveness.SUSPECT:
                    try:
                        mirror.epoch_is(await state.epoch())  # perhaps another life of it
                    except aio.AioRpcError:
                        continue  # it went away again; the next check decides
                    self._trust(state)
                case Health.REFUSING:
                    self.suspect(state, "its health check says NOT_SERVING")
                case Health.SILENT:
                    state.silent_checks += 1
                    if state.silent_checks >= PROBE_FAILURES:
                        self.suspect(
                            state, f"{state.silent_checks} health checks without an answer"
                        )
                    if self._clock() - heard_s >= GIVE_UP_S:
                        state.give_up_unanswered()
                    if self._clock() - max(heard_s, state.heard_s) >= VANISHED_S:
                        state.end_calls("it is silent")

    async def _pause(self, state: ReplicaState) -> None:
        """Until the next check is due: soon, when the replica becomes suspect meanwhile."""
        if state.liveness is Liveness.LIVE:
            try:
                async with asyncio.timeout(PROBE_PERIOD_S):
                    await state.suspected.wait()
            except TimeoutError:
                return
        await asyncio.sleep(SUSPECT_PROBE_PERIOD_S)

    async def close(self) -> None:
        """Give up all replicas, at the end of the process."""
        for member in list(self.members.values()):
            for task in member.tasks:
                task.cancel()
            await member.state.close()


def _same_replica(new: Lease, old: Lease) -> bool:
    """Whether only what changes during a replica's life differs: its epoch and seq."""
    fields = ("address", "model", "page_size", "block_size", "hash_version", "key_check")
    return all(getattr(new, name) == getattr(old, name) for name in (*fields, "tokenizer_digest"))
