"""An engine without threads or wire, whose books are checked after every step."""

import random
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry

from proto.errors import LBError
from proto.prefixlb.v1.inference_pb2 import SamplingParams
from radix_rs import Tree, derive_hash_key
from replica.cache import Cache
from replica.delta_log import DeltaLog
from replica.engine import Engine
from replica.metrics import Metrics
from replica.models.interface import Model
from replica.pool import Pool
from replica.request import Request
from replica.sampling import sampling_of
from replica.scheduler import Scheduler
from replica.sequence import Sequence
from replica.stream import Finish, TokenStream
from tests.fakes import FakeClock, FakeModel

STEP_S = 0.01


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    end: Finish | LBError | None = None


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
    ) -> None:
        self.model = model or FakeModel()
        config = self.model.config
        self.clock = FakeClock()
        self.tree = Tree(
            page_size=page_size,
            block_size=block_size,
            hash_key=derive_hash_key(b"secret"),
            model=config.model_id,
        )
        self.pool = Pool(
            num_slots=slots,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=self.model.dtype,
            device=self.model.device,
        )
        self.cache = Cache(self.tree, self.pool, page_size=page_size)
        self.scheduler = Scheduler(
            self.cache, chunk_size=chunk_size, page_size=page_size, max_running=max_running
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
        sampling: SamplingParams | None = None,
    ) -> Request:
        now_s = self.clock()
        request = Request(
            request_id=f"request-{len(self.answers)}",
            sequence=Sequence(
                np.array(prompt, dtype=np.uint32), extra_key=extra_key, cache_salt=cache_salt
            ),
            stream=TokenStream(),
            sampling=sampling_of(
                sampling or SamplingParams(ignore_eos=True),
                vocab_size=self.model.config.vocab_size,
                eos_token_ids=self.model.config.eos_token_ids,
                seeds=random.Random(0),
            ),
            max_tokens=max_tokens,
            priority=priority,
            arrived_s=now_s,
            deadline_s=None if timeout_s is None else now_s + timeout_s,
        )
        self.answers[request] = Answer()
        self.engine.add(request)
        return request

    def step(self) -> None:
        for output in self.engine.step():
            answer = self.answers[output.request]
            assert answer.end is None
            if output.token_id is not None:
                answer.tokens.append(output.token_id)
            answer.end = output.end
        self.scheduler.check()
        self.clock.advance(STEP_S)

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
