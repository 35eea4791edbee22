"""Stories in `traces/`, replayed on both cores of the tree and on the model.

A trace is a list of commands, each followed by what it answers, on lines that begin with `|`.
Lines that begin with `#` tell why. `pytest --rewrite` writes the answers of the compiled tree into
the files: read the diff. `radix_rs/tests/traces.rs` replays the same files on the crate alone.

    tree page=1 block=4        a new tree; the namespace is the plain one
        policy=slru threshold=3    another order of eviction than lru, and its options
    namespace a bc             (extra_key, cache_salt) of what follows; `-` is empty
    insert 0..40 5 7*3 as=x    tokens 0 to 39, then 5, then three times 7; x names the node
        owned=40 counted=40    as in Tree.insert; the other positions get slots never used before
        priority=5
    match KEY as=x             length and slots
    peek KEY                   length
    touch KEY                  length
    lock x                     the node of that name
    unlock x                   its newest live receipt, or, if there is none, the one used last
    admit KEY as=r             r names the request, its lock, and its row: the slots it uses
    readmit r KEY              once more, with the lock it has
    checkpoint r KEY           slots never used before are put to its row for what is new in KEY
        prompt=8 priority=5
        owned=9                wrongly, instead of what it has
    finish r KEY over=2        the same, with two slots more than tokens
    evict 10, reset            the slots freed; those of a reset sorted
    deltas, snapshot 4, dump, stats
"""

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from proto.prefixlb.v1 import delta_pb2
from radix_rs import Tree, derive_hash_key
from replica.py_tree import PyTree
from replica.tree_error import TreeError
from tests.both_cores import numbers
from tests.model import PLAIN, Model, ModelError, Namespace, ranges

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))
KEY = derive_hash_key(b"traces")

Options = dict[str, int]


class Core(Protocol):
    """What a trace can do to a tree; both sides answer in the same words."""

    def insert(
        self,
        tokens: list[int],
        slots: list[int],
        owned: int,
        counted: int,
        priority: int,
        space: Namespace,
    ) -> tuple[int, list[tuple[int, int]], object]: ...
    def match(self, tokens: list[int], space: Namespace) -> tuple[int, list[int], object]: ...
    def peek(self, tokens: list[int], space: Namespace) -> int: ...
    def admit(
        self, tokens: list[int], receipt: int | None, space: Namespace
    ) -> tuple[list[int], object, int]: ...
    def checkpoint(
        self, tokens: list[int], row: list[int], receipt: int, claim: Options, space: Namespace
    ) -> tuple[int, int, object, int, list[int]]: ...
    def finish(
        self, tokens: list[int], row: list[int], receipt: int, claim: Options, space: Namespace
    ) -> list[int]: ...
    def lock(self, node: object) -> int: ...
    def unlock(self, receipt: int) -> None: ...
    def evict(self, num_tokens: int) -> list[int]: ...
    def reset(self) -> list[int]: ...
    def dump(self) -> str: ...
    def deltas(self) -> list[str] | None: ...
    def snapshot(self, max_blocks: int) -> list[str] | None: ...
    def stats(self) -> str: ...


class Real:
    """A core of the tree."""

    def __init__(
        self,
        make: Callable[..., Tree | PyTree],
        page_size: int,
        block_size: int,
        policy: str,
        options: Options,
    ) -> None:
        self.tree = make(
            page_size=page_size,
            block_size=block_size,
            hash_key=KEY,
            model="m",
            policy=policy,
            policy_options=options,
        )
        self.names: dict[int, str] = {}

    def insert(
        self,
        tokens: list[int],
        slots: list[int],
        owned: int,
        counted: int,
        priority: int,
        space: Namespace,
    ) -> tuple[int, list[tuple[int, int]], object]:
        done = self.tree.insert(
            array("I", tokens),
            array("i", slots),
            owned_from=owned,
            counted_to=counted,
            priority=priority,
            extra_key=space[0],
            cache_salt=space[1],
        )
        return done.prefix_length, done.duplicates, done.node

    def match(self, tokens: list[int], space: Namespace) -> tuple[int, list[int], object]:
        out = array("i", [-1] * len(tokens))
        found = self.tree.match_prefix(
            array("I", tokens), out, extra_key=space[0], cache_salt=space[1]
        )
        return found.length, list(out[: found.length]), found.node

    def peek(self, tokens: list[int], space: Namespace) -> int:
        return self.tree.peek(array("I", tokens), extra_key=space[0], cache_salt=space[1])

    def admit(
        self, tokens: list[int], receipt: int | None, space: Namespace
    ) -> tuple[list[int], object, int]:
        out = array("i", [-1] * len(tokens))
        done = self.tree.admit(
            array("I", tokens), out, receipt=receipt, extra_key=space[0], cache_salt=space[1]
        )
        return list(out[: done.length]), done.node, done.receipt

    def checkpoint(
        self, tokens: list[int], row: list[int], receipt: int, claim: Options, space: Namespace
    ) -> tuple[int, int, object, int, list[int]]:
        own = array("i", row)
        done = self.tree.checkpoint(
            array("I", tokens),
            own,
            receipt=receipt,
            **claim,
            extra_key=space[0],
            cache_salt=space[1],
        )
        row[:] = own
        freed = numbers(done.freed)
        return done.length, done.prefix_length, done.node, done.receipt, freed

    def finish(
        self, tokens: list[int], row: list[int], receipt: int, claim: Options, space: Namespace
    ) -> list[int]:
        freed = self.tree.finish(
            array("I", tokens),
            array("i", row),
            receipt=receipt,
            **claim,
            extra_key=space[0],
            cache_salt=space[1],
        )
        return numbers(freed)

    def lock(self, node: object) -> int:
        assert isinstance(node, int)
        return self.tree.lock(node)

    def unlock(self, receipt: int) -> None:
        self.tree.unlock(receipt)

    def evict(self, num_tokens: int) -> list[int]:
        return numbers(self.tree.evict(num_tokens))

    def reset(self) -> list[int]:
        return numbers(self.tree.reset())

    def dump(self) -> str:
        return self.tree.dump()

    def deltas(self) -> list[str] | None:
        deltas = self.tree.drain_deltas()
        if deltas is None:
            return ["none"]
        counts = f"stored={deltas.stored} removed={deltas.removed} count={deltas.count}"
        return [*self.events(deltas.events), counts]

    def snapshot(self, max_blocks: int) -> list[str] | None:
        lines: list[str] = []
        for chunk in self.tree.snapshot(max_blocks):
            lines += ["chunk", *self.events(chunk)]
        return lines

    def events(self, events: bytes) -> Iterator[str]:
        for event in delta_pb2.DeltaBatch.FromString(events).events:
            match event.WhichOneof("event"):
                case "stored":
                    hashes = " ".join(map(self.name, event.stored.hashes))
                    yield f"stored {hashes} after {self.name(event.stored.parent)}"
                case "removed":
                    yield f"removed {self.name(event.removed.last)} count={event.removed.count}"
                case "cleared":
                    yield "cleared"

    def name(self, block: int) -> str:
        """Blocks are b1, b2, ... in the order in which they are first seen."""
        return "root" if block == 0 else self.names.setdefault(block, f"b{len(self.names) + 1}")

    def stats(self) -> str:
        self.tree.check()
        stats = self.tree.stats()
        return (
            f"nodes={stats.nodes} evictable={stats.evictable} protected={stats.protected} "
            f"locks={stats.locks} evicted={stats.evicted_total}"
        )


class Modelled:
    def __init__(self, page_size: int, block_size: int, policy: str, options: Options) -> None:
        self.model = Model(
            page_size=page_size,
            block_size=block_size,
            hash_key=KEY,
            model="m",
            policy=policy,
            policy_options=options,
        )

    def insert(
        self,
        tokens: list[int],
        slots: list[int],
        owned: int,
        counted: int,
        priority: int,
        space: Namespace,
    ) -> tuple[int, list[tuple[int, int]], object]:
        done = self.model.insert(
            tokens,
            slots,
            owned_from=owned,
            counted_to=counted,
            priority=priority,
            namespace=space,
        )
        return done.prefix_length, done.duplicates, done.node

    def match(self, tokens: list[int], space: Namespace) -> tuple[int, list[int], object]:
        length, node, slots = self.model.match_prefix(tokens, space)
        return length, slots, node

    def peek(self, tokens: list[int], space: Namespace) -> int:
        return self.model.peek(tokens, space)

    def admit(
        self, tokens: list[int], receipt: int | None, space: Namespace
    ) -> tuple[list[int], object, int]:
        if receipt is not None:
            self.model.unlock(receipt)
        _, node, slots = self.model.match_prefix(tokens, space)
        return slots, node, self.model.lock(node)

    def checkpoint(
        self, tokens: list[int], row: list[int], receipt: int, claim: Options, space: Namespace
    ) -> tuple[int, int, object, int, list[int]]:
        return self.model.checkpoint(tokens, row, receipt, **claim, namespace=space)

    def finish(
        self, tokens: list[int], row: list[int], receipt: int, claim: Options, space: Namespace
    ) -> list[int]:
        return self.model.finish(tokens, row, receipt, **claim, namespace=space)

    def lock(self, node: object) -> int:
        return self.model.lock(node)  # type: ignore[arg-type]

    def unlock(self, receipt: int) -> None:
        self.model.unlock(receipt)

    def evict(self, num_tokens: int) -> list[int]:
        return self.model.evict(num_tokens)

    def reset(self) -> list[int]:
        return self.model.reset()

    def dump(self) -> str:
        return self.model.dump()

    def deltas(self) -> list[str] | None:
        """The model knows which blocks there are, not in which words that is said."""
        return None

    def snapshot(self, max_blocks: int) -> list[str] | None:
        return None

    def stats(self) -> str:
        evictable, protected = self.model.sizes()
        return (
            f"nodes={len(self.model.ends)} evictable={evictable} protected={protected} "
            f"locks={len(self.model.receipts)} evicted={self.model.evicted_total}"
        )


@dataclass
class Request:
    row: list[int]
    owned: int
    counted: int = 0


class Replay:
    def __init__(self, make: Callable[..., Core]) -> None:
        self.make = make
        self.space = PLAIN
        self.next_slot = 0
        self.nodes: dict[str, object] = {}
        self.receipts: dict[str, list[int]] = {}
        self.used: dict[str, int] = {}
        self.requests: dict[str, Request] = {}
        self.core: Core

    def run(self, command: str) -> list[str] | None:
        """The answer's lines; None where this core has none to give."""
        verb, *words = command.split()
        plain = [word for word in words if "=" not in word]
        options = dict(word.split("=") for word in words if "=" in word)
        try:
            return self.answer(verb, plain, options)
        except (TreeError, ModelError) as error:
            return ["error: " + re.sub(r"(node|receipt) \d+", r"\1", str(error))]

    def answer(self, verb: str, words: list[str], options: dict[str, str]) -> list[str] | None:
        match verb:
            case "tree":
                page_size, block_size = int(options.pop("page")), int(options.pop("block"))
                policy = options.pop("policy", "lru")
                numbers = {option: int(value) for option, value in options.items()}
                self.core = self.make(page_size, block_size, policy, numbers)
                self.space = PLAIN
                return []
            case "namespace":
                extra_key, cache_salt = ("" if word == "-" else word for word in words)
                self.space = (extra_key, cache_salt)
                return []
            case "insert":
                return [self.insert(tokens_of(words), options)]
            case "match":
                length, slots, node = self.core.match(tokens_of(words), self.space)
                self.nodes[options.get("as", "")] = node
                return [f"length={length} slots={ranges(slots)}"]
            case "peek":
                return [f"length={self.core.peek(tokens_of(words), self.space)}"]
            case "touch":
                return [f"length={self.core.match(tokens_of(words), self.space)[0]}"]
            case "admit":
                return [self.admit(options["as"], tokens_of(words), None)]
            case "readmit":
                receipt = self.receipt(words[0])
                return [self.admit(words[0], tokens_of(words[1:]), receipt)]
            case "checkpoint":
                return [self.checkpoint(words[0], tokens_of(words[1:]), options)]
            case "finish":
                return [self.finish(words[0], tokens_of(words[1:]), options)]
            case "lock":
                receipt = self.core.lock(self.nodes[words[0]])
                self.receipts.setdefault(words[0], []).append(receipt)
                return []
            case "unlock":
                self.core.unlock(self.receipt(words[0]))
                return []
            case "evict":
                return [f"slots={ranges(self.core.evict(int(words[0])))}"]
            case "reset":
                return [f"slots={ranges(sorted(self.core.reset()))}"]
            case "dump":
                return self.core.dump().splitlines()
            case "deltas":
                return self.core.deltas()
            case "snapshot":
                return self.core.snapshot(int(words[0]))
            case "stats":
                return [self.core.stats()]
            case _:
                raise ValueError(f"no such command: {verb}")

    def receipt(self, name: str) -> int:
        """The newest live one, which is used now; if there is none, the one used last."""
        live = self.receipts.get(name)
        self.used[name] = live.pop() if live else self.used[name]
        return self.used[name]

    def admit(self, name: str, tokens: list[int], receipt: int | None) -> str:
        slots, node, locked = self.core.admit(tokens, receipt, self.space)
        self.requests[name] = Request(row=slots, owned=len(slots))
        self.nodes[name] = node
        self.receipts.setdefault(name, []).append(locked)
        return f"length={len(slots)} slots={ranges(slots)}"

    def checkpoint(self, name: str, tokens: list[int], options: dict[str, str]) -> str:
        request, receipt = self.requests[name], self.receipt(name)
        self.extend(request, len(tokens))
        try:
            length, held, node, moved, freed = self.core.checkpoint(
                tokens, request.row, receipt, claim(request, options), self.space
            )
        except (TreeError, ModelError):
            self.receipts[name].append(receipt)
            raise
        request.owned = request.counted = length
        self.nodes[name] = node
        self.receipts[name].append(moved)
        return f"length={length} held={held} freed={ranges(freed)} row={ranges(request.row)}"

    def finish(self, name: str, tokens: list[int], options: dict[str, str]) -> str:
        request, receipt = self.requests[name], self.receipt(name)
        self.extend(request, len(tokens) + int(options.get("over", 0)))
        freed = self.core.finish(tokens, request.row, receipt, claim(request, options), self.space)
        return f"freed={ranges(freed)}"

    def extend(self, request: Request, length: int) -> None:
        count = max(length - len(request.row), 0)
        request.row += range(self.next_slot, self.next_slot + count)
        self.next_slot += count

    def insert(self, tokens: list[int], options: dict[str, str]) -> str:
        owned = int(options.get("owned", 0))
        count = max(len(tokens) - owned, 0)
        # Positions the tree owns already are given slots it must not take.
        slots = [-1] * (len(tokens) - count) + list(range(self.next_slot, self.next_slot + count))
        counted = int(options.get("counted", 0))
        priority = int(options.get("priority", 0))
        held, duplicates, node = self.core.insert(
            tokens, slots, owned, counted, priority, self.space
        )
        self.next_slot += count
        self.nodes[options.get("as", "")] = node
        spans = ",".join(f"{start}..{end}" for start, end in duplicates) or "none"
        return f"held={held} duplicates={spans}"


def claim(request: Request, options: dict[str, str]) -> Options:
    return {
        "owned_from": int(options.get("owned", request.owned)),
        "counted_to": request.counted,
        "prompt_length": int(options.get("prompt", 0)),
        "priority": int(options.get("priority", 0)),
    }


def tokens_of(words: list[str]) -> list[int]:
    tokens: list[int] = []
    for word in words:
        if ".." in word:
            start, end = word.split("..")
            tokens += range(int(start), int(end))
        elif "*" in word:
            token, count = word.split("*")
            tokens += [int(token)] * int(count)
        else:
            tokens.append(int(word))
    return tokens


def is_command(line: str) -> bool:
    return bool(line) and line[0] not in "#|"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
@pytest.mark.parametrize("core", [Tree, PyTree])
def test_a_core_answers_as_the_trace_says(
    path: Path, core: Callable[..., Tree | PyTree], rewrite: bool
) -> None:
    replay = Replay(partial(Real, core))
    text = path.read_text()
    answered: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            answered.append(line)
        if is_command(line):
            lines = replay.run(line)
            assert lines is not None
            answered += [f"| {answer}" for answer in lines]
    if rewrite and core is Tree:
        path.write_text("\n".join(answered) + "\n")
    else:
        assert answered == text.splitlines()


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_model_answers_as_the_trace_says(path: Path) -> None:
    replay = Replay(Modelled)
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if not is_command(line):
            continue
        expected = []
        for answer in lines[number + 1 :]:
            if not answer.startswith("|"):
                break
            expected.append(answer.removeprefix("| "))
        answers = replay.run(line)
        if answers is None:
            continue
        if expected and expected[0].startswith("error: "):
            assert answers[0].startswith("error: "), f"line {number + 1}: {line}"
        else:
            assert answers == expected, f"line {number + 1}: {line}"
