"""What a replica's tree goes through: requests, and the calls they make on any tree.

W1 is a trace in the format of Mooncake (Qin et al., 2024; one JSON object a line with `hash_ids` of
512-token blocks, `input_length` and `output_length`), or made up in its shape. W2 are many users of
one prompt, W3 chats of up to 2,000 tokens that grow turn by turn.
"""

import json
import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]
Slots = npt.NDArray[np.int32]
Request = tuple[Tokens, Tokens]
"""Prompt and output."""

VOCABULARY = 128_000
BLOCK = 512
BATCH = 4
IN_FLIGHT = 16


def trace_requests(path: Path, count: int) -> list[Request]:
    with path.open() as lines:
        rows = [json.loads(line) for _, line in zip(range(count), lines, strict=False)]
    return [
        _request(seed, row["hash_ids"], row["input_length"], row["output_length"])
        for seed, row in enumerate(rows)
    ]


def made_requests(count: int, seed: int = 5) -> list[Request]:
    """Conversations over a shared system prompt; most prompts are long and new, as in the trace."""
    rng = random.Random(seed)
    conversations: list[list[int]] = []
    next_block = 1
    requests: list[Request] = []
    for number in range(count):
        if not conversations or rng.random() < 0.6:
            conversations.append([0])
        chat = rng.choice(conversations[-100:])
        chat += range(next_block, next_block + 1 + min(int(rng.expovariate(1 / 18)), 240))
        next_block += 300
        length = len(chat) * BLOCK - rng.randrange(BLOCK)
        requests.append(
            _request(number, chat, length, 1 + min(int(rng.expovariate(1 / 340)), 2000))
        )
    return requests


def shared_prompt(count: int, seed: int = 1) -> list[Request]:
    rng = np.random.default_rng(seed)
    prompt = _random(rng, 2048)
    return [(np.concatenate([prompt, _random(rng, 64)]), _random(rng, 16)) for _ in range(count)]


def chats(count: int, seed: int = 7) -> list[Request]:
    rng, pick = np.random.default_rng(seed), random.Random(seed)
    systems = [_random(rng, pick.randint(100, 300)) for _ in range(8)]
    live: list[Tokens] = []
    requests: list[Request] = []
    while len(requests) < count:
        if len(live) < 400 or pick.random() < 0.1:
            live.append(pick.choice(systems))
            chat = len(live) - 1
        else:
            chat = pick.randrange(len(live))
        prompt = np.concatenate([live[chat], _random(rng, pick.randint(100, 250))])
        answer = _random(rng, pick.randint(20, 200))
        if len(prompt) + len(answer) > 2000:
            live[chat] = pick.choice(systems)
            continue
        requests.append((prompt, answer))
        live[chat] = np.concatenate([prompt, answer])
    return requests


class Backend(Protocol):
    """A tree under test. Times its own calls on the tree, and nothing else, into `times_ns`."""

    times_ns: dict[str, list[int]]

    def key(self, tokens: Tokens) -> Any:
        """As the tree takes it."""

    def admit(self, key: Any, length: int) -> tuple[Slots, Any]:
        """The slots matched, and what stands for the lock on them."""

    def checkpoint(self, key: Any, row: Slots, lock: Any, owned_from: int) -> tuple[Slots, Any]:
        """The slots to free, and the new lock; writes the tree's slots to `row`."""

    def finish(self, key: Any, row: Slots, lock: Any, owned_from: int) -> Slots:
        """The slots to free."""

    def evict(self, count: int) -> Slots: ...
    def evictable(self) -> int: ...


class Pool:
    """Free slots, the last freed first."""

    def __init__(self, count: int) -> None:
        self._stack = np.arange(count, dtype=np.int32)[::-1].copy()
        self.num_free = count

    def alloc(self, count: int) -> Slots:
        self.num_free -= count
        return self._stack[self.num_free : self.num_free + count][::-1].copy()

    def free(self, slots: Slots) -> None:
        self._stack[self.num_free : self.num_free + len(slots)] = slots[::-1]
        self.num_free += len(slots)


@dataclass
class _Running:
    prompt: Tokens
    output: Tokens
    row: Slots
    owned_from: int
    lock: Any


@dataclass
class Outcome:
    hits: list[int] = field(default_factory=list)
    """Tokens matched by each request."""
    prompt_tokens: int = 0
    evicted: int = 0


def replay(tree: Backend, requests: Iterable[Request], *, page_size: int, capacity: int) -> Outcome:
    """Admit by fours, compute, keep sixteen in flight, evict what is short."""
    return _Replay(tree, page_size, capacity).run(iter(requests))


class _Replay:
    def __init__(self, tree: Backend, page_size: int, capacity: int) -> None:
        self.tree = tree
        self.page_size = page_size
        self.capacity = capacity
        self.pool = Pool(capacity)
        self.running: deque[_Running] = deque()
        self.outcome = Outcome()

    def run(self, requests: Iterator[Request]) -> Outcome:
        while batch := [request for _, request in zip(range(BATCH), requests, strict=False)]:
            admitted = [self.admit(prompt, output) for prompt, output in batch]
            while self.running and len(self.running) + len(admitted) > IN_FLIGHT:
                self.finish()
            for request in admitted:
                self.compute(request)
        while self.running:
            self.finish()
        if self.tree.evictable() + self.pool.num_free != self.capacity:
            raise RuntimeError("slots are lost")
        return self.outcome

    def admit(self, prompt: Tokens, output: Tokens) -> _Running:
        key = self.tree.key(prompt[:-1])
        row, lock = self.tree.admit(key, len(prompt) - 1)
        self.outcome.hits.append(len(row))
        self.outcome.prompt_tokens += len(prompt)
        return _Running(prompt, output, row, len(row), lock)

    def compute(self, request: _Running) -> None:
        """All of its prompt."""
        self.extend(request, len(request.prompt))
        whole = len(request.prompt) // self.page_size * self.page_size
        key = self.tree.key(request.prompt[:whole])
        freed, request.lock = self.tree.checkpoint(
            key, request.row, request.lock, request.owned_from
        )
        self.pool.free(freed)
        request.owned_from = whole
        self.running.append(request)

    def finish(self) -> None:
        request = self.running.popleft()
        tokens = np.concatenate([request.prompt, request.output])
        self.extend(request, len(tokens))
        whole = len(tokens) // self.page_size * self.page_size
        key = self.tree.key(tokens[:whole])
        self.pool.free(self.tree.finish(key, request.row, request.lock, request.owned_from))

    def extend(self, request: _Running, length: int) -> None:
        missing = length - len(request.row)
        while missing > self.pool.num_free:
            if self.tree.evictable() > 0:
                freed = self.tree.evict(missing - self.pool.num_free)
                self.outcome.evicted += len(freed)
                self.pool.free(freed)
            elif self.running:
                self.finish()
            else:
                raise RuntimeError(f"{self.capacity} slots are too few")
        request.row = np.concatenate([request.row, self.pool.alloc(missing)])


def _request(seed: int, blocks: list[int], prompt: int, output: int) -> Request:
    rng = np.random.default_rng(1_000_003 + seed)
    return _block_tokens(blocks)[:prompt], _random(rng, output)


def _block_tokens(blocks: list[int]) -> Tokens:
    """The same 512 tokens for the same block, by splitmix64."""
    ids = np.asarray(blocks, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = (ids[:, None] * np.uint64(BLOCK) + np.arange(BLOCK, dtype=np.uint64)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z % np.uint64(VOCABULARY)).astype(np.uint32).reshape(-1)


def _random(rng: np.random.Generator, count: int) -> Tokens:
    return rng.integers(0, VOCABULARY, count, dtype=np.uint32)
