"""An engine without threads or wire, whose books are checked after every step."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry

from proto.detokenizer import Detokenizer
from proto.errors import LBError
from proto.prefixlb.v1.inference_pb2 import FINISH_REASON_UNSPECIFIED, FinishReason, SamplingParams
from radix_rs import Tree, derive_hash_key
from replica.cache import Cache
from replica.delta_log import DeltaLog
from replica.engine import Engine
from replica.metrics import Metrics
from replica.models.interface import Model
from replica.output import Output
from replica.pool import Pool
from replica.request import Request
from replica.sampling import sampling_of
from replica.schedule_policy import make_schedule_policy
from replica.scheduler import Scheduler
from replica.sequence import Sequence as TokenSequence
from replica.stream import AnswerStream
from replica.tree_core import PolicyName
from tests.fakes import FakeClock, FakeModel


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason.ValueType = FINISH_REASON_UNSPECIFIED
    error: LBError | None = None


class EngineRig:
    def __init__(
        self,
        *,
        model: Model | None = None,
        slots: int = 4096,
        page_size: int = 1,
        block_size: int = 16,
        chunk_size: int = 64,
        max_running: int = 16,
        max_backlog_bytes: int = 1 << 20,
        schedule_policy: str = "shortest",
        eviction_policy: PolicyName = "lru",
        disable_cache: bool = False,
    ) -> None:
        self.clock = FakeClock()
        self.model = model or FakeModel(self.clock)
        config = self.model.config
        self.tree = Tree(
            page_size=page_size,
            block_size=block_size,
            hash_key=derive_hash_key(b"secret"),
            model=config.model_id,
            policy=eviction_policy,
            disabled=disable_cache,
        )
        self.pool = Pool(
            num_slots=slots,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=self.model.dtype,
            device=self.model.device,
        )
        self.cache = Cache(self.tree, self.pool)
        self.scheduler = Scheduler(
            self.cache,
            make_schedule_policy(schedule_policy, self.cache.parent),
            chunk_size=chunk_size,
            page_size=page_size,
            max_running=max_running,
            wait_to_share=not disable_cache,
        )
        self.delta_log = DeltaLog(block_size=block_size, max_backlog_bytes=max_backlog_bytes)
        self.metrics = Metrics(CollectorRegistry(), model=config.model_id)
        self.engine = Engine(
            model=self.model,
            tree=self.tree,
            pool=self.pool,
            cache=self.cache,
            scheduler=self.scheduler,
            delta_log=self.delta_log,
            metrics=self.metrics,
            clock=self.clock,
        )
        self.answers: dict[Request, Answer] = {}

    def submit(
        self,
        prompt: list[int],
        max_tokens: int = 4,
        *,
        extra_key: str = "",
        cache_salt: str = "",
        priority: int = 0,
        timeout_s: float | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> Request:
        """Greedy, and ended by `stop_token_ids` or `max_tokens` alone."""
        params = SamplingParams(
            max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stop_token_ids
        )
        checked = sampling_of(
            params,
            vocab_size=self.model.config.vocab_size,
            eos_token_ids=self.model.config.eos_token_ids,
            seeds=random.Random(0),
        )
        now_s = self.clock()
        request = Request(
            request_id=f"request-{len(self.answers)}",
            sequence=TokenSequence(
                np.array(prompt, dtype=np.uint32),
                extra_key=extra_key,
                cache_salt=cache_salt,
                priority=priority,
            ),
            sampling=checked,
            output=Output(checked, Detokenizer([])),
            stream=AnswerStream(),
            arrived_s=now_s,
            deadline_s=None if timeout_s is None else now_s + timeout_s,
        )
        self.answers[request] = Answer()
        self.engine.add(request)
        return request

    def step(self) -> None:
        for progress in self.engine.step():
            answer = self.answers[progress.request]
            assert answer.finish_reason == FINISH_REASON_UNSPECIFIED and answer.error is None
            answer.tokens += progress.token_ids
            answer.finish_reason = progress.finish_reason
            answer.error = progress.error
        self.scheduler.check()

    def run(self) -> None:
        """Until nothing is left to do, and an idle step after it."""
        for _ in range(10_000):
            if self.engine.is_idle:
                self.step()
                return
            self.step()
        raise AssertionError("the engine makes no progress")

    def generate(self, prompt: list[int], max_tokens: int = 4, **options: object) -> list[int]:
        """The answer to one request alone."""
        request = self.submit(prompt, max_tokens, **options)  # type: ignore[arg-type]
        self.run()
        return self.answers[request].tokens
