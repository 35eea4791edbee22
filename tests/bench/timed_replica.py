"""`python -m replica` that writes down when its tree changed and what publishing took.

python -m tests.bench.timed_replica TIMES [FLAG ...]: TIMES gets a JSON object at the end. With
PREFIXLB_FILL_BLOCKS=n in the environment its tree begins with that many blocks, with
PREFIXLB_ASLEEP=1 its model sleeps instead of computing.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import replica.announcement
import replica.process
from replica.__main__ import main
from replica.delta_log import Batch, DeltaLog
from replica.engine import Engine, Progress, Snapshot
from replica.models.interface import Batch as Tokens
from replica.models.interface import Model, SlotPool
from replica.publisher import PERIOD_S, Publisher
from replica.tree_core import Deltas, TreeCore

CHAIN_BLOCKS = 64
"""Of each prompt in a tree that is filled."""

STEP_S, TOKEN_S = 0.004, 0.00002
"""Of a model that sleeps: a short step, so that there is much to tell."""

times: dict[str, Any] = {
    "changes": [],  # (digest, CLOCK_MONOTONIC in ns): a batch with this digest tells of it
    "sendings": [],  # of each batch, as in delta_path.Sending
    "steps": [],  # when each ended, in s
    "step_s": 0.0,  # CPU of the engine's thread, as the three that follow
    "in_step_s": 0.0,  # of handing over deltas
    "snapshot_s": [],
    "publisher_s": 0.0,  # CPU of the publisher's thread
}


class TimedLog(DeltaLog):
    def append(self, deltas: Deltas) -> int:
        times["changes"].append((deltas.digest, time.monotonic_ns()))
        return super().append(deltas)

    def sent(self, batch: Batch) -> None:
        times["sendings"].append((batch.seq, TimedPublisher.due_ns, TimedPublisher.woken_ns))
        super().sent(batch)


class AsleepModel:
    """Computes on a device of its own, as it were: the cores here are left to all else."""

    def __init__(self, model: Model) -> None:
        self.config, self.device, self.dtype = model.config, model.device, model.dtype

    def forward(self, batch: Tokens, pool: SlotPool) -> torch.Tensor:
        time.sleep(STEP_S + TOKEN_S * len(batch.token_ids))
        rows = sum(segment.wants_logits for segment in batch.segments)
        return torch.zeros(rows, self.config.vocab_size)


class TimedEngine(Engine):
    def __init__(self, *, model: Model, tree: TreeCore, **parts: Any) -> None:
        fill(tree, int(os.environ.get("PREFIXLB_FILL_BLOCKS", "0")))
        if os.environ.get("PREFIXLB_ASLEEP") == "1":
            model = AsleepModel(model)
        super().__init__(model=model, tree=tree, **parts)

    def step(self) -> list[Progress]:
        began_s = time.thread_time()
        progress = super().step()
        times["step_s"] += time.thread_time() - began_s
        times["steps"].append(time.monotonic())
        return progress

    def snapshot(self) -> Snapshot:
        began_s = time.monotonic()
        snapshot = super().snapshot()
        times["snapshot_s"].append(time.monotonic() - began_s)
        return snapshot

    def _publish(self) -> None:
        began_s = time.thread_time()
        super()._publish()
        times["in_step_s"] += time.thread_time() - began_s


class TimedPublisher(Publisher):
    due_ns = woken_ns = 0
    """Of the step it is in: see delta_path.Sending."""

    def step(self) -> bool:
        cls = type(self)
        began_s = time.thread_time()
        cls.woken_ns = time.monotonic_ns()
        taken = super().step()
        cls.due_ns = max(cls.woken_ns + int(PERIOD_S * 1e9), time.monotonic_ns())
        times["publisher_s"] += time.thread_time() - began_s
        return taken


def fill(tree: TreeCore, blocks: int) -> None:
    """Distinct prompts of 64 blocks each. Their slots are none of the pool's: nothing evicts."""
    count = CHAIN_BLOCKS * 16
    tokens, slots = np.arange(count, dtype=np.uint32), np.arange(count, dtype=np.int32)
    for number in range(blocks // CHAIN_BLOCKS):
        tokens[0] = number
        tree.insert(tokens.data, (slots + number * count).data)


if __name__ == "__main__":
    replica.process.DeltaLog = TimedLog  # type: ignore[misc]
    replica.process.Engine = TimedEngine  # type: ignore[misc]
    replica.announcement.Publisher = TimedPublisher  # type: ignore[misc]
    code = main(sys.argv[2:])
    Path(sys.argv[1]).write_text(json.dumps(times))
    sys.exit(code)
