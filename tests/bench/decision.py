"""How long a pick takes from token ids on: python -m tests.bench.decision [--rounds N] [--json].

Prompts of 16,384 tokens; replicas that hold 16 conversations of that length each and one system
prompt all alike, with two prompts of this router in flight on each and four reported as waiting.
From Rust by the crate's bench `decision`, on the wall clock; from Python by this thread's CPU time.
Of several rounds the best counts: others' work on the machine only adds.
"""

import argparse
import json
import subprocess
from array import array
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from time import thread_time_ns

from rich.console import Console
from rich.table import Table

from proto.prefixlb.v1 import delta_pb2
from radix_rs import HASH_VERSION, Router, chain_hashes

CRATE = Path(__file__).parents[2] / "radix_rs"
BLOCK = 16
SYSTEM_TOKENS, PROMPT_TOKENS, TURN_TOKENS = 2048, 16_384, 256
CONVERSATIONS, IN_FLIGHT = 16, 2
WAITING = (300, 2_000, 9_000, 40_000)
KEY = bytes(16)


@dataclass(frozen=True)
class Figure:
    name: str
    ours: float
    goal: float | None

    def as_json(self) -> dict[str, float | bool | None]:
        ok = None if self.goal is None else self.ours <= self.goal
        return {"ours": self.ours, "peer": None, "ratio": None, "goal": self.goal, "ok": ok}


def from_rust(replicas: int, rounds: int) -> dict[str, float]:
    """Microseconds; each figure of its best round."""
    command = ["cargo", "bench", "--quiet", "--bench", "decision", "--", str(replicas)]
    runs = [
        json.loads(subprocess.run(command, cwd=CRATE, stdout=subprocess.PIPE, check=True).stdout)
        for _ in range(rounds)
    ]
    return {name: min(run[name] for run in runs) for name in runs[0]}


def from_python(replicas: int, rounds: int) -> dict[str, float]:
    router = Router(hash_key=KEY)
    for replica in range(replicas):
        fill(router, replica)
    picked: deque[int] = deque()
    best = {"p50": float("inf"), "p99": float("inf")}
    turn = 0
    for _ in range(rounds):
        times = []
        for _ in range(2000):
            tokens = prompt(turn % replicas, turn // replicas % CONVERSATIONS, turn)
            start = thread_time_ns()
            pick = router.pick(tokens, model="m", now_s=turn * 1e-3)
            times.append((thread_time_ns() - start) / 1000)
            assert pick is not None and pick.available
            picked.append(pick.ticket)
            if len(picked) > IN_FLIGHT * replicas:
                router.release(picked.popleft())
            turn += 1
        times = sorted(times[500:])
        best["p50"] = min(best["p50"], times[len(times) // 2])
        best["p99"] = min(best["p99"], times[int(len(times) * 0.99)])
    return best


def prompt(replica: int, conversation: int, turn: int) -> "array[int]":
    """A system prompt that all replicas hold, a conversation of one, and a turn of its own."""
    own = PROMPT_TOKENS - SYSTEM_TOKENS - TURN_TOKENS
    start = (1000 + replica * CONVERSATIONS + conversation) * 7919
    last = (1_000_000 + turn) * 997
    ids = array("I", range(SYSTEM_TOKENS))
    ids.extend(range(start, start + own))
    ids.extend(range(last, last + TURN_TOKENS))
    return ids


def fill(router: Router, replica: int) -> None:
    name = f"replica-{replica}"
    router.add_replica(name, model="m", block_size=BLOCK)
    router.set_eligible(name, True)
    held: set[int] = set()
    events = []
    for conversation in range(CONVERSATIONS):
        cached = prompt(replica, conversation, 0)[:-TURN_TOKENS]
        hashes = chain_hashes(cached, hash_key=KEY, model="m", block_size=BLOCK)
        held.update(hashes)
        events.append(delta_pb2.DeltaEvent(stored=delta_pb2.Stored(hashes=hashes)))
    load = delta_pb2.Load(
        running=8,
        waiting=len(WAITING),
        pending_tokens=sum(WAITING),
        classes=[
            delta_pb2.LoadClass(log2=tokens.bit_length() - 1, requests=1, tokens=tokens)
            for tokens in WAITING
        ],
        order=delta_pb2.PREFILL_ORDER_SHORTEST,
        total_slots=1_000_000,
        chunk_tokens=4096,
        prefill_tokens_per_s=20_000,
    )
    batch = delta_pb2.DeltaBatch(
        epoch=1,
        seq=1,
        block_size=BLOCK,
        hash_version=HASH_VERSION,
        events=events,
        load=load,
        count=len(held),
        digest=sum(held) % 2**64,
    )
    applied = router.apply_snapshot(name, batch.SerializeToString(), True)
    assert applied.outcome == "applied", applied.outcome


def measure(rounds: int) -> list[Figure]:
    rust = {replicas: from_rust(replicas, rounds) for replicas in (8, 64, 1024)}
    python = from_python(64, rounds)
    return [
        Figure("Rust, 64 replicas: p50 us", rust[64]["p50"], 25),
        Figure("Rust, 64 replicas: p99 us", rust[64]["p99"], 80),
        Figure("of it hashing: p50 us", rust[64]["hash_p50"], None),
        Figure("Python, 64 replicas: p50 us", python["p50"], 30),
        Figure("Python, 64 replicas: p99 us", python["p99"], 100),
        Figure("Rust, 8 replicas: p50 us", rust[8]["p50"], None),
        Figure("Rust, 1024 replicas: p50 us", rust[1024]["p50"], None),
        Figure("p50 of 1024 replicas over 8", rust[1024]["p50"] / rust[8]["p50"], 2),
        *(
            Figure(f"a prompt nobody holds, {replicas} replicas: p50 us", each["cold_p50"], None)
            for replicas, each in rust.items()
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    arguments = parser.parse_args()
    found = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps({figure.name: figure.as_json() for figure in found}, indent=2))
        return
    table = Table(title=f"a decision, prompts of {PROMPT_TOKENS} tokens")
    for column in ("what", "ours", "goal", "ok"):
        table.add_column(column)
    for figure in found:
        ok = figure.as_json()["ok"]
        table.add_row(
            figure.name,
            f"{figure.ours:.2f}",
            "-" if figure.goal is None else f"at most {figure.goal:g}",
            "-" if ok is None else "yes" if ok else "NO",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
