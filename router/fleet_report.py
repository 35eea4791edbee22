"""The fleet as this router sees it, replica by replica, for whoever asks."""

import time
from collections.abc import Callable, Sequence

from proto.prefixlb.v1 import admin_pb2, delta_pb2
from radix_rs import Router, RouterError
from router.fleet import Fleet, Member
from router.mirror import MirrorState
from router.redis_link import RedisLink
from router.replica_state import Liveness
from router.subscriber import Subscriber

MIRROR_STATES = {
    MirrorState.COLD: admin_pb2.MIRROR_STATE_COLD,
    MirrorState.SNAPSHOT: admin_pb2.MIRROR_STATE_SNAPSHOT,
    MirrorState.STREAMING: admin_pb2.MIRROR_STATE_STREAMING,
}

BREAKER_STATES = {
    "closed": admin_pb2.BREAKER_STATE_CLOSED,
    "overloaded": admin_pb2.BREAKER_STATE_OVERLOADED,
    "open": admin_pb2.BREAKER_STATE_OPEN,
    "half_open": admin_pb2.BREAKER_STATE_HALF_OPEN,
}


class FleetReport:
    """Reads the fleet and changes nothing; on any thread."""

    def __init__(
        self,
        fleet: Fleet,
        subscriber: Subscriber,
        router: Router,
        *,
        links: Sequence[RedisLink],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`links`: all uses that this router makes of Redis."""
        self._links = links
        self._fleet = fleet
        self._subscriber = subscriber
        self._router = router
        self._clock = clock

    def listed(self) -> admin_pb2.ListReplicasResponse:
        """The whole fleet, who has just left it, and whether Redis answers."""
        return admin_pb2.ListReplicasResponse(
            replicas=self.statuses(),
            redis_away_s=self.redis_away_s(),
            departures=[
                admin_pb2.Departure(
                    replica_id=each.lease.replica_id,
                    address=each.lease.address,
                    why=each.why,
                    ago_s=ago_s,
                )
                for each, ago_s in self._fleet.departures
            ],
        )

    def redis_away_s(self) -> float:
        """For how long Redis has not answered; 0 if it does, or nobody asks it."""
        return max(link.away_s for link in self._links)

    def statuses(self) -> list[admin_pb2.ReplicaStatus]:
        """By id, the refused ones too."""
        members = list(self._fleet.members.values())
        statuses = [
            *(status for member in members if (status := self._read(member))),
            *(
                admin_pb2.ReplicaStatus(
                    lease=refusal.lease,
                    mirror=admin_pb2.MIRROR_STATE_COLD,
                    refusal=f"{refusal.reason}: {refusal.detail}",
                )
                for refusal in self._fleet.refusals
            ),
        ]
        statuses.sort(key=lambda status: status.lease.replica_id)
        return statuses

    def _read(self, member: Member) -> admin_pb2.ReplicaStatus | None:
        """None if the replica left meanwhile."""
        try:
            return self._status(member)
        except (KeyError, RouterError):
            return None

    def _status(self, member: Member) -> admin_pb2.ReplicaStatus:
        state, sync = member.state, member.mirror
        indexed, load = self._router.mirror(state.id), self._router.load(state.id)
        breaker = self._router.breaker(state.id, now_s=self._clock())
        return admin_pb2.ReplicaStatus(
            lease=state.lease,
            mirror=MIRROR_STATES[sync.state],
            epoch=indexed.epoch,
            seq=indexed.seq,
            count=indexed.count,
            digest=indexed.digest,
            load=delta_pb2.Load(
                running=load.running,
                waiting=load.waiting,
                pending_tokens=load.pending_tokens,
                free_slots=load.free_slots,
                evictable_slots=load.evictable_slots,
                total_slots=load.total_slots,
                draining=load.draining,
            ),
            in_flight=self._router.in_flight(state.id),
            prompt_tokens=state.tokens.prompt,
            available_tokens=state.tokens.available,
            captured_tokens=state.tokens.captured,
            delivered_tokens=state.tokens.delivered,
            requests=state.tokens.requests,
            gaps=sync.totals.gaps,
            snapshots=sync.totals.snapshots,
            other_tokenizer=state.other_tokenizer,
            delta_lag_s=self._subscriber.stream(state.id).lag_s,
            silent_s=state.silent_s,
            live=state.liveness is Liveness.LIVE and not load.draining,
            breaker=BREAKER_STATES[breaker.state],
            breaker_openings=breaker.openings,
        )
