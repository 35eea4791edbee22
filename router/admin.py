"""What operators and gateways ask: who would be picked, why, and how the fleet looks."""

import time
from collections.abc import AsyncIterator, Callable

from grpc import aio

from proto.errors import as_status
from proto.prefixlb.v1 import admin_pb2
from proto.prefixlb.v1.admin_pb2_grpc import AdminServicer
from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from radix_rs import Router
from router.admission import Admission
from router.auditor import Auditor
from router.fleet import Fleet, none_eligible
from router.fleet_report import BREAKER_STATES, FleetReport
from router.leases import Leases
from router.prompt import Prompt, PromptReader


class Admin(AdminServicer):
    """Reads the same parts as the front, and changes nothing but the leases of picks."""

    def __init__(
        self,
        *,
        router: Router,
        fleet: Fleet,
        report: FleetReport,
        prompts: PromptReader,
        admission: Admission,
        auditor: Auditor,
        leases: Leases,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._fleet = fleet
        self._report = report
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
        async with as_status(context):
            explained = await self.explain(request.request)
        return explained

    async def ListReplicas(
        self,
        request: admin_pb2.ListReplicasRequest,
        context: aio.ServicerContext[admin_pb2.ListReplicasRequest, admin_pb2.ListReplicasResponse],
    ) -> admin_pb2.ListReplicasResponse:
        return self._report.listed()

    async def Audit(
        self,
        request: admin_pb2.AuditRequest,
        context: aio.ServicerContext[admin_pb2.AuditRequest, admin_pb2.AuditResponse],
    ) -> AsyncIterator[admin_pb2.AuditResponse]:
        async with as_status(context):
            async for audited in self._auditor.audit(request.replica_ids):
                yield audited

    async def explain(self, request: GenerateRequest) -> admin_pb2.ExplainResponse:
        """Without a pick if no candidate is eligible: that is when one wants to see them.

        Raises an LBError.
        """
        with self._admission.admitted():
            prompt = await self._prompts.read(request)
            explained = admin_pb2.ExplainResponse(
                pick=self._pick(request, prompt),
                candidates=self._candidates(request, prompt),
            )
        if explained.HasField("pick"):
            picked = self._fleet.replica(explained.pick.replica_id)
            # One with another tokenizer counts its own tokens.
            if prompt.tokenizer_digest in (None, picked.lease.tokenizer_digest) and prompt.tokens:
                explained.refusal = await picked.refusal(len(prompt.tokens))
        return explained

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
