"""Who is there, and what each replica needs while it is there."""

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from proto.errors import Unavailable, UnknownModel
from proto.prefixlb.v1.delta_pb2 import Lease
from radix_rs import Plane, Router, RouterError
from router.departures import Departures
from router.health_checks import HealthChecks
from router.mirror import Mirror
from router.refusals import Refusals, objection
from router.replica_channel import Dialer
from router.replica_state import ReplicaState
from router.subscriber import Subscriber
from router.tokenizers import ModelTokenizer, Tokenizers

log = logging.getLogger(__name__)

MAX_KNOWN_MODELS = 256
"""Models remembered after their last replica left, so that their requests are worth a retry."""


@dataclass
class Member:
    """A replica of the view with what belongs to it."""

    state: ReplicaState
    mirror: Mirror
    tasks: tuple[asyncio.Task[None], ...]


class Fleet:
    """The replicas of the last view; all changes of membership pass through here.

    An id is one replica's, and so is an address: who has it keeps it for as long as it answers its
    health checks, and another that claims it is refused. A replica that restarts elsewhere
    therefore joins as soon as its old address is silent.
    """

    def __init__(
        self,
        *,
        router: Router,
        plane: Plane,
        dialer: Dialer,
        key_check: int,
        subscriber: Subscriber,
        tokenizers: Tokenizers,
        tasks: asyncio.TaskGroup,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`key_check`: of the cluster secret's key; a replica of another secret is refused."""
        self._router = router
        self._plane = plane
        self._dialer = dialer
        self._key_check = key_check
        self._subscriber = subscriber
        self._tokenizers = tokenizers
        self._tasks = tasks
        self._rng = rng
        self._clock = clock
        self._health_checks = HealthChecks(router=router, clock=clock)
        self.members: dict[str, Member] = {}
        self.refusals = Refusals(clock=clock)
        self.departures = Departures(clock=clock)
        self._at: dict[str, str] = {}
        """Members by address."""
        self._known_models: dict[str, None] = {}
        """In the order in which replicas of them joined last."""

    async def follow(self, views: AsyncIterator[Sequence[Lease]]) -> None:
        """Keep up with a source's views until cancelled."""
        async for view in views:
            self.update(view)

    def update(self, view: Sequence[Lease]) -> None:
        """Make the members those of `view`; an id may be claimed in it more than once."""
        claims: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease in view:
            claims[lease.replica_id].append(lease)
        for replica, member in list(self.members.items()):
            if why := self._ends(member, claims[replica]):
                # Another one of its name comes first: it has just proved to be silent itself.
                claims[replica].sort(key=lambda lease: lease.address == member.state.lease.address)
                self._leave(member, why)
        for leases in claims.values():
            for lease in leases:
                self._take(lease)
        self.refusals.forget()

    def replica(self, replica: str) -> ReplicaState:
        """State of a member."""
        return self.members[replica].state

    def answers(self, replica: str) -> bool:
        """Whether it is a member and shows life."""
        member = self.members.get(replica)
        return member is not None and self._health_checks.answers(member.state)

    def model(self, asked: str) -> str:
        """The model a request means. Raises UnknownModel or Unavailable."""
        served = {member.state.lease.model for member in self.members.values()}
        if asked in served:
            return asked
        if (asked and asked in self._known_models) or not served:
            of_model = f" of model {asked!r}" if asked else ""
            refused = ", ".join(sorted({each.reason for each in self.refusals}))
            why = f"; some are refused ({refused}), see prefixlb status" if refused else ""
            raise Unavailable(f"no replica{of_model} is there{why}")
        if not asked and len(served) == 1:
            return served.pop()
        wanted = f"unknown model {asked!r}" if asked else "the request names no model"
        raise UnknownModel(f"{wanted}; served: {', '.join(sorted(served))}")

    def tokenizer(self, model: str) -> ModelTokenizer | None:
        """With which to tokenise text for the model; None while it is not here."""
        return self._tokenizers.of_model(model)

    def suspect(self, state: ReplicaState, why: str) -> None:
        """Do not pick it until a health check succeeds."""
        member = self.members.get(state.id)
        if member is not None and member.state is state:
            self._health_checks.suspect(state, why)

    def failed(self, replica: str, serial: int, why: str) -> None:
        """It failed a request, in the life that the data plane calls `serial`."""
        member = self.members.get(replica)
        if member is not None and member.state.serial == serial:
            self._health_checks.doubt(member.state, why)

    def _ends(self, member: Member, claims: Sequence[Lease]) -> str:
        """Why its membership ends, if it does."""
        mine = member.state.lease
        if not claims:
            return "it is no longer found"
        own = next((lease for lease in claims if lease.address == mine.address), None)
        if own is not None and not _same_replica(own, mine):
            return "it changed"
        if (own is None or len(claims) > 1) and not self._health_checks.answers(member.state):
            return "it is silent, and its id is claimed elsewhere"
        return ""

    def _take(self, lease: Lease) -> None:
        """Use what the lease says: of a member, or of a replica that joins if it can."""
        member = self.members.get(lease.replica_id)
        if member is None:
            self._join(lease)
        elif member.state.lease.address == lease.address:
            member.state.lease = lease
            member.mirror.epoch_is(lease.epoch)
        else:
            first = member.state.lease.address
            detail = f"the replica at {first} has this id and answers: give each its own"
            self.refusals.add(lease, "id", detail)
            member.state.doubted.set()  # a replica that moved is found out soon

    def _join(self, lease: Lease) -> None:
        name = lease.replica_id
        if refused := objection(lease, self._key_check):
            self.refusals.add(lease, *refused)
            return
        if (other := self._at.get(lease.address)) is not None:
            self.refusals.add(lease, "address", f"replica {other!r} is at this address")
            return
        try:
            self._router.add_replica(name, model=lease.model, block_size=lease.block_size)
        except RouterError as error:
            self.refusals.add(lease, "block_size", str(error))
            return
        try:
            state = ReplicaState(lease, self._plane, self._dialer)
        except RouterError as error:
            self._router.remove_replica(name)
            self.refusals.add(lease, "address", str(error))
            return
        self.refusals.lift(lease)
        self.departures.lift(name)
        self._remember(lease.model)
        mirror = Mirror(
            name,
            router=self._router,
            snapshot=state.snapshot,
            rng=self._rng,
            clock=self._clock,
        )
        tasks = (
            self._tasks.create_task(mirror.run(), name=f"mirror {name}"),
            self._tasks.create_task(self._health_checks.run(state, mirror), name=f"health {name}"),
            self._tasks.create_task(self._tokenizers.provide(state), name=f"tokenizer {name}"),
        )
        self.members[name] = Member(state, mirror, tasks)
        self._at[lease.address] = name
        self._subscriber.add(name, mirror)
        self._router.set_eligible(name, True)
        log.info(
            "replica joins replica=%s address=%s model=%s epoch=%016x",
            *(name, lease.address, lease.model, lease.epoch),
        )
        self._choose_tokenizer(lease.model)

    def _leave(self, member: Member, why: str) -> None:
        state = member.state
        log.info("replica leaves replica=%s why=%r", state.id, why)
        self.departures.add(state.lease, why)
        del self.members[state.id]
        del self._at[state.lease.address]
        self._subscriber.remove(state.id)
        state.leave("it left the fleet")
        self._router.remove_replica(state.id)
        for task in member.tasks:
            task.cancel()
        self._tasks.create_task(state.close(), name=f"close {state.id}")
        self._choose_tokenizer(state.lease.model)

    def _choose_tokenizer(self, model: str) -> None:
        states = [member.state for member in self.members.values()]
        self._tokenizers.choose(model, [s for s in states if s.lease.model == model])

    def _remember(self, model: str) -> None:
        self._known_models.pop(model, None)
        self._known_models[model] = None
        while len(self._known_models) > MAX_KNOWN_MODELS:
            del self._known_models[next(iter(self._known_models))]

    async def close(self) -> None:
        """Give up all replicas, at the end of the process."""
        for member in list(self.members.values()):
            for task in member.tasks:
                task.cancel()
            await member.state.close()


def none_eligible(model: str) -> Unavailable:
    """What to raise where a pick finds nobody."""
    return Unavailable(f"no replica of model {model!r} can take requests now")


def _same_replica(new: Lease, old: Lease) -> bool:
    """Whether only what changes during a replica's life differs: its epoch and seq."""
    fields = ("address", "model", "page_size", "block_size", "hash_version", "key_check")
    return all(getattr(new, name) == getattr(old, name) for name in (*fields, "tokenizer_digest"))
