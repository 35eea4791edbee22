"""What operators and gateways ask: who would be picked, why, and how the fleet looks."""

import time
from collections.abc import AsyncIterator, Callable

from grpc import aio

from proto.errors import as_status
from proto.prefixlb.v1 import admin_pb2, delta_pb2
from proto.prefixlb.v1.admin_pb2_grpc import AdminServicer
from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from radix_rs import Router
from router.admission import Admission
from router.auditor import Auditor
from router.fleet import Fleet, Member, none_eligible
from router.leases import Leases
from router.mirror import MirrorState
from router.prompt import Prompt, PromptReader
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


class Admin(AdminServicer):
    """Reads the same parts as the front, and changes nothing but the leases of picks."""

    def __init__(
        self,
        *,
        router: Router,
        fleet: Fleet,
        subscriber: Subscriber,
        prompts: PromptReader,
        admission: Admission,
        auditor: Auditor,
        leases: Leases,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._fleet = fleet
        self._subscriber = subscriber
        self._prompts = prompts
        self._admission = admission
        self._auditor = auditor
        self._leases = leases
        self._clock = clock

    async def Pick(
        self,
        request: admin_pb2.PickRequest,
        context: aio.ServicerContext[admin_pb2.PickRequest, admin_pb2.PickResponse],
    ) -> admin_pb2.PickResponse:
        async with as_status(context):
            with self._admission.admitted():
                if request.lease_s:
                    self._leases.check(request.lease_s)
                prompt = await self._prompts.read(request.request)
                picked = self._pick(request.request, prompt, request.lease_s)
            if picked is None:
                raise none_eligible(prompt.model)
        return picked

    async def Release(
        self,
        request: admin_pb2.ReleaseRequest,
        context: aio.ServicerContext[admin_pb2.ReleaseRequest, admin_pb2.ReleaseResponse],
    ) -> admin_pb2.ReleaseResponse:
        released = self._leases.release(request.ticket, request.code)
        return admin_pb2.ReleaseResponse(released=released)

    async def Explain(
        self,
        request: admin_pb2.ExplainRequest,
        context: aio.ServicerContext[admin_pb2.ExplainRequest, admin_pb2.ExplainResponse],
    ) -> admin_pb2.ExplainResponse:
        """Without a pick if no candidate is eligible: that is when one wants to see them."""
        async with as_status(context):
            with self._admission.admitted():
                prompt = await self._prompts.read(request.request)
                explained = admin_pb2.ExplainResponse(
                    pick=self._pick(request.request, prompt),
                    candidates=self._candidates(request.request, prompt),
                )
        return explained

    async def ListReplicas(
        self,
        request: admin_pb2.ListReplicasRequest,
        context: aio.ServicerContext[admin_pb2.ListReplicasRequest, admin_pb2.ListReplicasResponse],
    ) -> admin_pb2.ListReplicasResponse:
        """The refused ones too, at their place."""
        statuses = [
            *(self._status(member) for member in self._fleet.members.values()),
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
        return admin_pb2.ListReplicasResponse(replicas=statuses)

    async def Audit(
        self,
        request: admin_pb2.AuditRequest,
        context: aio.ServicerContext[admin_pb2.AuditRequest, admin_pb2.AuditResponse],
    ) -> AsyncIterator[admin_pb2.AuditResponse]:
        async with as_status(context):
            async for audited in self._auditor.audit(request.replica_ids):
                yield audited

    def _pick(
        self, request: GenerateRequest, prompt: Prompt, lease_s: float = 0.0
    ) -> admin_pb2.PickResponse | None:
        decide = self._router.pick if lease_s else self._router.peek
        pick = decide(
            prompt.tokens,
            model=prompt.model,
            extra_key=request.extra_key,
            cache_salt=request.cache_salt,
            now_s=self._clock(),
        )
        if pick is None:
            return None
        state = self._fleet.replica(pick.replica)
        prompt_tokens = len(prompt.tokens)
        return admin_pb2.PickResponse(
            replica_id=pick.replica,
            address=state.lease.address,
            prompt_tokens=prompt_tokens,
            matched_tokens=state.reusable(pick.matched, prompt_tokens),
            reason=admin_pb2.PickReason.Value(f"PICK_REASON_{pick.reason.upper()}"),
            ticket=self._leases.give(pick.ticket, lease_s) if lease_s else 0,
        )

    def _candidates(self, request: GenerateRequest, prompt: Prompt) -> list[admin_pb2.Candidate]:
        return [
            admin_pb2.Candidate(
                replica_id=each.replica,
                eligible=each.eligible,
                breaker=BREAKER_STATES[each.breaker],
                matched_tokens=each.matched,
                expected_tokens=each.expected,
                ahead_tokens=each.ahead,
                delayed_requests=each.delayed_requests,
                decode_pressure_tokens=each.decode_pressure,
                cost_tokens=each.cost,
            )
            for each in self._router.explain(
                prompt.tokens,
                model=prompt.model,
                extra_key=request.extra_key,
                cache_salt=request.cache_salt,
                now_s=self._clock(),
            )
        ]

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
