"""The trees and the pick, compiled.

Buffers: tokens are any one-dimensional C-contiguous buffer of u32, slots of i32, both in native
byte order (numpy arrays, array.array, memoryview). They are read in place, under the GIL.
A namespace is the pair (`extra_key`, `cache_salt`); empty means absent. Lengths are in tokens
unless the name says otherwise. A broken protocol raises `TreeError` before anything is changed,
a `hash_key` that has not 16 bytes `ValueError` everywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Protocol, final

from typing_extensions import Buffer

HASH_VERSION: int
"""Names the chain hash; peers with another version cannot share deltas."""

class TreeError(Exception):
    """Wrong use of a tree: bad buffer type or length, unknown node, unlock of what is not
    locked.
    """

class RouterError(Exception):
    """Wrong use of a router: unknown replica, block size that contradicts the model's,
    malformed batch, tokens that are no buffer of u32. Nothing was changed.
    """

class TextError(Exception):
    """A tokenizer or chat template that cannot be used, or a chat it refuses."""

@final
class TextCodec:
    """A tokenizer and chat template; the twin of `proto.text.TextCodec`, token for token."""

    def __new__(
        cls,
        tokenizer_json: bytes,
        *,
        chat_template: str = "",
        bos_token: str = "",
        eos_token: str = "",
        add_bos: bool = False,
    ) -> TextCodec:
        """Raises TextError if the tokenizer or the template cannot be used."""

    def encode(self, text: str) -> bytes:
        """Token ids (u32, native byte order) of a text prompt. Releases the GIL."""

    def encode_chat(self, messages: list[tuple[str, str]]) -> bytes:
        """Token ids of (role, content) in the model's template. Raises TextError if it refuses."""

def derive_hash_key(secret: bytes) -> bytes:
    """The 16-byte key of the chain hash: the first half of SHA-256("prefixlb-hash-v1" ||
    secret).
    """

def key_check(hash_key: bytes) -> int:
    """A hash of a constant under the key: equal in two processes if their cluster secrets are."""

def chain_hashes(
    tokens: Buffer,
    *,
    hash_key: bytes,
    model: str,
    block_size: int,
    extra_key: str = "",
    cache_salt: str = "",
) -> list[int]:
    """Chain hashes of the whole blocks of `tokens`, first block first. For tests and tools."""

@final
class Match:
    length: int
    """Tokens cached, a whole number of pages."""
    node: int
    """Handle of the node the match ends at, the root's where nothing matches. Valid until that node
    is evicted or the tree is reset; no value is ever used again.
    """

@final
class Insert:
    prefix_length: int
    """Tokens of the key that the tree held before."""
    node: int
    """Handle of the node the key's whole pages end at."""
    duplicates: list[tuple[int, int]]
    """Ranges [start, end) of positions whose slots the tree did not take: the caller frees them.

    So it does with those past the last whole page, which are no part of this.
    """

@final
class Admission:
    length: int
    """Tokens cached, a whole number of pages."""
    node: int
    """Handle of the node the match ends at."""
    receipt: int
    """Of the lock on it."""

@final
class Checkpoint:
    length: int
    """Tokens of the key in the tree: its whole pages. The next `owned_from` and `counted_to`."""
    prefix_length: int
    """Tokens of the key that the tree held before."""
    node: int
    """Handle of the node the key ends at."""
    receipt: int
    """Of the lock on it; the one given is used up."""
    freed: bytes
    """The caller's slots that the tree did not take, as from `evict`."""

@final
class Deltas:
    events: bytes
    """`repeated DeltaEvent events = 5` of a DeltaBatch in wire format: append to a serialised
    header.
    """
    stored: int
    """Blocks stored by these events."""
    removed: int
    """Blocks removed by these events."""
    count: int
    """Blocks in the tree after them."""
    digest: int
    """Wrapping sum of mix(hash) over those blocks, u64."""

@final
class TreeStats:
    nodes: int
    tokens: int
    evictable: int
    """Tokens on nodes nobody locks."""
    protected: int
    """Tokens on locked nodes. evictable + protected == tokens."""
    locks: int
    """Live receipts."""
    evicted_total: int
    """Tokens evicted since the tree was made."""

@final
class Tree:
    """A replica's radix tree: full attention, behaviour as in SGLang's TreeCore.

    Keys are cut to whole pages first. Not for several threads at once.
    """

    def __init__(
        self,
        *,
        page_size: int = 1,
        block_size: int = 16,
        hash_key: bytes,
        model: str,
        policy: str = "lru",
        policy_options: dict[str, int] | None = None,
        disabled: bool = False,
    ) -> None:
        """`block_size` must be a multiple of `page_size`.

        `policy`: which unlocked leaf `evict` takes first.
        "lru": least recently used; also the order within the classes of the next four.
        "lfu": fewest hits.
        "slru": under `threshold` (2) hits before the others.
        "priority": lowest priority.
        "tlru": first what the next prompt of its conversation can do without, that prompt being
        `next_prompt_estimate` (0) tokens longer than the longest key so far and free to have
        `threshold` (0) tokens computed.
        "fifo", "filo": first, last made. "mru": most recently used.
        An insert is a hit of the nodes it reaches and gives them its priority if theirs is lower.
        TreeError on a name or an option there is not.

        `disabled`: every key is empty to the tree. It holds nothing, evicts nothing, says nothing,
        and all slots stay the caller's: `finish` gives all of them back.
        """
    def match_prefix(
        self,
        tokens: Buffer,
        slots_out: Buffer | None = None,
        *,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Match:
        """Longest cached whole-page prefix of `tokens` (u32, [n]).

        Writes its slots to `slots_out` (i32, writable, at least [n]) if given, nothing past them.
        May split a node, makes the path most recent, frees nothing. The slots stay valid only while
        `node` is locked: lock before the next evict.
        """
    def touch(self, tokens: Buffer, *, extra_key: str = "", cache_salt: str = "") -> int:
        """`match_prefix` for its effect alone: the path is the most recent. Returns the length."""
    def peek(self, tokens: Buffer, *, extra_key: str = "", cache_salt: str = "") -> int:
        """Length `match_prefix` would return. Changes nothing."""
    def find(
        self,
        tokens: Buffer,
        *,
        node: int = 0,
        length: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Match:
        """`peek` for a key that is looked up again and again: it goes on from where it stood.

        The `Match` is the one of `match_prefix`, but its node is the one in which the match lies,
        not always at its end: nothing is split. `node`, `length`: what `find`, `admit` or
        `checkpoint` said of this key before, or of a beginning of it. Then only what follows is
        compared; everything if that node is gone, or `length` is none that it can have said.
        """
    def expected(
        self,
        id: int,
        tokens: Buffer,
        *,
        node: int = 0,
        length: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> bytes:
        """The whole blocks of `tokens` that the tree does not hold, announced under `id`.

        One `Expected` event as it stands in a serialised DeltaBatch, empty if there are none.
        `node`, `length`: as for `find`; what is held there is not hashed again.
        """
    def parent(self, node: int) -> int | None:
        """Handle of the node above `node`, None above a root."""
    def insert(
        self,
        tokens: Buffer,
        slots: Buffer,
        *,
        owned_from: int = 0,
        counted_to: int = 0,
        priority: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Insert:
        """Store the whole pages of `tokens` (u32, [n]) under `slots` (i32, [n]).

        Positions below `owned_from` are the tree's own already, whatever `slots` says there;
        TreeError if the tree does not hold the whole pages below it. Of the rest, those the tree
        held before are `duplicates`: the tree keeps its slots, the caller frees its own. A key that
        ends inside a node splits it there, so storing a prompt again after the prompt with its
        output makes the output evictable alone. `counted_to`: up to which position this request
        was counted as a hit before.
        """
    def lock(self, node: int) -> int:
        """Protect the path from `node` to the root from eviction. Returns a receipt for one
        `unlock`.
        """
    def unlock(self, receipt: int) -> None:
        """Undo one `lock`. TreeError if the receipt was used before or never given out."""
    def admit(
        self,
        tokens: Buffer,
        slots_out: Buffer,
        *,
        receipt: int | None = None,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Admission:
        """`match_prefix` and `lock` of its node, then `unlock` of `receipt`, a lock held before."""
    def checkpoint(
        self,
        tokens: Buffer,
        slots: Buffer,
        *,
        receipt: int,
        owned_from: int = 0,
        counted_to: int = 0,
        prompt_length: int = 0,
        priority: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Checkpoint:
        """Give the tree what a request has computed, and let the request use what the tree holds.

        `insert` of `tokens` (u32, [n]) under `slots` (i32, writable, at least [n]); `insert` of the
        first `prompt_length` tokens with a priority higher by one, so that a node ends where prompt
        and output meet and the output can be evicted alone; a match; and the lock moved from
        `receipt` to where the key ends. Where the tree held slots of its own they replace the
        caller's in `slots`, from `owned_from` on; the caller's are `freed`, as by `evict`.

        `tokens` begin with those that `receipt` locks, as far as they go. Only the last 256 of
        these are compared, and all if they differ: the cost is that of what was computed since.
        TreeError as from `insert`, and on an `owned_from` beyond the whole pages of `tokens`.
        """
    def finish(
        self,
        tokens: Buffer,
        slots: Buffer,
        *,
        receipt: int,
        owned_from: int = 0,
        counted_to: int = 0,
        prompt_length: int = 0,
        priority: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> bytes:
        """The last `checkpoint`, and `unlock`. Leaves `slots` alone.

        Returns, as `evict` does, all slots the tree did not take: also those past the whole pages,
        to the end of `slots`, which may be longer than `tokens`.
        """
    def evict(self, num_tokens: int) -> bytes:
        """Evict unlocked leaves in the order of the policy until `num_tokens` are freed or none is
        left.

        Returns their slots as ranges, victim after victim: pairs of i32 in native byte order, the
        first slot and how many there are, each the one before and one. Possibly more than asked, by
        the last leaf's rest. A parent whose last child went competes by its own key.
        """
    def reset(self) -> bytes:
        """Drop everything; TreeError while any receipt is live. Returns all slots, in any order.

        Its deltas are one Cleared, which takes the place of all that was not drained before.
        """
    def drain_deltas(self) -> Deltas | None:
        """What changed since the last call, None if nothing did."""
    def snapshot(self, max_blocks: int = 65536) -> Iterator[bytes]:
        """All blocks, as chunks of serialised events like `Deltas.events`, parents first. Drain
        deltas before.

        A chunk has at most `max_blocks` blocks; a run may go on in the next one. None without
        blocks. The blocks are copied at once, the chunks made as they are asked for, by any thread.
        """
    def count_digest(self) -> tuple[int, int]:
        """(blocks, digest) of the tree as it is, drained or not."""
    def stats(self) -> TreeStats: ...
    def dump(self) -> str:
        """The tree as indented text, one node a line with length, lock_ref, hits and slots.

        Siblings in the order of their tokens, which are not shown. For tests and eyes.
        """
    def check(self) -> None:
        """Recompute every invariant; TreeError names the first that fails. For tests."""

@final
class Applied:
    outcome: str
    """"applied", "stale" (seq seen before), "gap", "epoch" (another epoch), "mismatch" (count
    or digest).
    """
    epoch: int
    """Of the batch."""
    seq: int
    stored: int
    removed: int

@final
class Load:
    """As in delta.proto, as of the replica's last batch."""

    running: int
    waiting: int
    pending_tokens: int
    free_slots: int
    evictable_slots: int
    total_slots: int
    draining: bool

@final
class Candidate:
    """One replica's side of a pick; tokens unless the name says otherwise. As in admin.proto."""

    replica: str
    eligible: bool
    breaker: str
    matched: int
    expected: int
    ahead: float
    delayed_requests: float
    decode_pressure: float
    cost: float

@final
class Pick:
    replica: str
    matched: int
    """Tokens of the prompt in the picked replica's mirror."""
    available: int
    """The best match among all eligible replicas."""
    reason: str
    """"prefix", "load", "cold" or "policy"."""
    ticket: int
    """Names this prompt while it is in flight; 0 for a peek."""

@final
class MirrorStats:
    """The figures of one replica's mirror."""

    epoch: int
    seq: int
    count: int
    """Blocks of the replica: those in its mirror and those that were forgotten."""
    digest: int
    """Of all these."""
    forgotten: int
    """Those that `index_max_bytes` made the mirror forget."""

@final
class Branch:
    """Blocks of one replica's mirror without a branch inside: an edge of its tree."""

    first: int
    """Hash of its first block, which names it."""
    blocks: int
    """Those that the replica holds."""
    replicas: int
    """How many hold its first block."""
    detached: bool
    """It begins no prompt, but what comes before it is not known."""
    branches_below: int
    """Branches of the replica below it, as far as they were looked at."""
    blocks_below: int
    """Blocks in these."""
    all_below: bool
    """All of them were looked at."""
    unused: int
    """How many stores ago it, or one of those, was last stored or matched, on any replica."""

@final
class Branches:
    """A page of them."""

    branches: list[Branch]
    """Below another one, the newest first; in no order where prompts begin."""
    next: int | None
    """`start` of the next page; None after the last. A page may be short, even empty, before it."""
    clock: int
    """`Router.index_clock` as of this page."""

@final
class Breaker:
    """What a replica's answers say of it."""

    state: str
    """"closed", "overloaded", "open" or "half_open"."""
    openings: int
    """How often it opened."""

@final
class BlockSet:
    """A mirror's blocks as of one batch; stays as it is while the mirror goes on."""

    epoch: int
    seq: int
    count: int
    forgotten: int
    """Blocks that the mirror held and had forgotten."""

    def not_in(self, other: BlockSet, limit: int) -> tuple[int, list[int]]:
        """How many of these blocks `other` lacks, and the first `limit` of them, sorted.

        Without the interpreter's lock: two big trees take milliseconds.
        """

@final
class Rules:
    """By what a router picks, as in its settings; what is not given is as usual.

    `policy`: "cost", "cache_aware", "consistent_hash", "power_of_two", "least_load", "round_robin"
    or "random". `uncached_weight`: of a prompt's own prefill; counts 2.1 times on replicas that
    serve first come, first served. `decode_weight`: tokens that a request being decoded counts.

    A replica's breaker opens when `breaker_failures` requests failed there in about
    `breaker_window_s` and no more were answered: it is passed over where there are others. After
    `breaker_open_s` at most, a time that doubles up to `breaker_max_open_s`, one request is let
    through; if its answer begins the breaker closes.
    """

    policy: str
    uncached_weight: float
    decode_weight: float
    cache_threshold: float
    balance_abs_threshold: int
    balance_rel_threshold: float
    load_factor: float
    breaker_failures: int
    breaker_window_s: float
    breaker_open_s: float
    breaker_max_open_s: float

    def __new__(
        cls,
        *,
        policy: str = ...,
        uncached_weight: float = ...,
        decode_weight: float = ...,
        cache_threshold: float = ...,
        balance_abs_threshold: int = ...,
        balance_rel_threshold: float = ...,
        load_factor: float = ...,
        breaker_failures: int = ...,
        breaker_window_s: float = ...,
        breaker_open_s: float = ...,
        breaker_max_open_s: float = ...,
    ) -> Rules:
        """ValueError on another policy or a number that is not finite or too small."""

@final
class Router:
    """The router's index, load table, prompts in flight and policy. No I/O; thread safe.

    To be embedded where requests are sent by other means:

    >>> router = Router(hash_key=derive_hash_key(b"secret"))
    >>> router.add_replica("gpu-0", model="llama", block_size=16)
    >>> router.set_eligible("gpu-0", True)
    >>> pick = router.pick(array("I", range(40)), model="llama", now_s=monotonic())
    >>> pick.replica, pick.matched, pick.reason
    ('gpu-0', 0, 'cold')
    >>> router.in_flight("gpu-0")
    1
    >>> router.prefilled(pick.ticket)  # its first token has come
    False
    >>> router.release(pick.ticket)  # its last one
    >>> router.in_flight("gpu-0")
    0

    What replicas cache it learns by `apply_snapshot` and `apply`, from the batches of delta.proto.
    """

    def __init__(
        self,
        *,
        hash_key: bytes,
        rules: Rules = ...,
        seed: int = 0,
        index_max_bytes: int | None = None,
    ) -> None:
        """`index_max_bytes`: above it the mirrors forget what nobody matched or stored for longest,
        ends of prompts first; count and digest go on proving the rest. None: there is no bound.
        """
    def follow(self, rules: Rules) -> None:
        """Pick by these from now on, as if made with them."""
    def add_replica(self, replica: str, *, model: str, block_size: int) -> None:
        """Known with an empty mirror at epoch 0 and not eligible. Its model's first replica
        sets the block size. RouterError if it is known already.
        """
    def remove_replica(self, replica: str) -> None:
        """Forget it, its mirror and its prompts in flight. Unknown: nothing happens."""
    def set_eligible(self, replica: str, eligible: bool) -> None:
        """Whether it can be picked; ends a doubt. A draining one is not, whatever is set here."""
    def doubt(self, replica: str) -> None:
        """Pick it only where there are none but such, until `set_eligible`."""
    def apply(self, replica: str, batch: bytes) -> Applied:
        """Apply a serialised DeltaBatch that continues the mirror: same epoch, next seq.

        Anything else leaves the mirror as it is, except "mismatch", whose events are applied. The
        load is taken from every batch but a "stale" one and, at an epoch other than 0, one of
        another "epoch". Prompts in flight end where their blocks are stored;
        those that the replica announces are in flight too, unless this router sent them.
        RouterError, and nothing changed, if the bytes are no batch or their hash_version or
        block_size are not the mirror's.
        """
    def clear(self, replica: str) -> None:
        """Forget the mirror's blocks; epoch 0, seq 0, and what the replica announced.

        Prompts that this router has sent stay in flight.
        """
    def apply_snapshot(self, replica: str, batch: bytes, last: bool) -> Applied:
        """Add one chunk of a snapshot to a cleared mirror; the last one sets epoch, seq and
        proves count, digest: "applied" or "mismatch"; its load, or none, is the load. Until then
        every batch of the stream is "epoch". RouterError if the mirror is not cleared, or the chunk
        is of another epoch or seq than those before it; also as for `apply`.
        """
    def mirror(self, replica: str) -> MirrorStats: ...
    def mirror_size_bytes(self, replica: str) -> int:
        """Its mirror's share of the index by blocks, roughly; the shares add up to the index."""
    @property
    def index_max_bytes(self) -> int:
        """As it was made; the largest address without a bound."""
    @property
    def index_size_bytes(self) -> int:
        """Memory of the index: of all mirrors together."""
    def load(self, replica: str) -> Load: ...
    def blocks(self, replica: str) -> list[int]:
        """The hashes in its mirror, sorted. For tests."""
    def branches(
        self,
        replica: str,
        *,
        below: int | None = None,
        start: int | None = None,
        limit: int,
    ) -> Branches:
        """A page of its mirror's branches, as they are now: those that begin prompts, or those
        below the branch whose first block is `below`.

        Looks at some 65,000 edges of the index at most, without the interpreter's lock, and gives
        way to picks. RouterError if `below` or `start` begins no branch there, perhaps no longer.
        """
    @property
    def index_clock(self) -> int:
        """Stores that the index has taken, modulo 2**32: by it, and a clock, `unused` is a time."""
    def block_set(self, replica: str) -> BlockSet:
        """Its mirror's blocks as of one batch. Looks at the whole index, without the interpreter's
        lock: for an audit, on a thread of its own.
        """
    def pick(
        self,
        tokens: Buffer,
        *,
        model: str,
        extra_key: str = "",
        cache_salt: str = "",
        exclude: list[str] = ...,
        now_s: float,
    ) -> Pick | None:
        """The replica for this prompt, None if none of the model is eligible.

        The prompt is in flight there until `release`: its blocks count as expected,
        and its uncached tokens as ahead of others, until its blocks are stored, `prefilled`,
        `release` or a minute has passed. `now_s`: a monotonic clock. `exclude`: names not to pick.
        """
    def peek(
        self, tokens: Buffer, *, model: str, extra_key: str = "", cache_salt: str = "", now_s: float
    ) -> Pick | None:
        """What `pick` would return, with ticket 0. Changes nothing."""
    def explain(
        self, tokens: Buffer, *, model: str, extra_key: str = "", cache_salt: str = "", now_s: float
    ) -> list[Candidate]:
        """All replicas of the model, by name. Changes nothing."""
    def prefilled(self, ticket: int) -> bool:
        """The first answer token came: its prefill is done. Unknown tickets are ignored.

        If the replica has announced it, its blocks stay expected until it has stored them. True if
        that closes the replica's breaker.
        """
    def failed(self, ticket: int, *, now_s: float) -> bool:
        """The request failed by the replica's fault. True if that opens its breaker."""
    def overloaded(self, ticket: int, *, until_s: float) -> None:
        """The replica has too much to do: it is passed over until then, where there are others."""
    def breaker(self, replica: str, *, now_s: float) -> Breaker: ...
    @property
    def last_resorts(self) -> int:
        """Picks of a replica whose answers spoke against it, as they did against all."""
    def release(self, ticket: int) -> None:
        """The request ended, however it did."""
    def in_flight(self, replica: str) -> int:
        """Requests picked there and not released."""
    def check(self) -> None:
        """Recompute every invariant of the index; RouterError names the first that fails. For
        tests.
        """

@final
class Activity:
    """What a replica does now."""

    calls: int
    """Requests there, answered or not."""
    unanswered: int
    """Those whose answer has not begun."""
    heard_s: float
    """When the last of any answer came, by the clock of `Plane`; -inf: never."""

@final
class TokenTotals:
    """Tokens of the requests a replica has completed since it joined."""

    requests: int
    prompt: int
    available: int
    captured: int
    delivered: int

@final
class ModelReading:
    """What was counted of one model's requests; "" of those that named none that is served."""

    model: str
    ended: list[tuple[str, int]]
    """By the name of their gRPC code; none that is 0."""
    first_token: tuple[list[int], float]
    """Counts by bucket, the last without a bound, and the sum in seconds."""
    inter_token: tuple[list[int], float]

@final
class Span:
    """A part of the time of a traced request."""

    name: str
    kind: str
    """Whose work it was: "server", "client", or "internal"."""
    id: int
    parent: int | None
    """The span that it is part of."""
    began_ns: int
    """Unix time, as in all that follow."""
    ended_ns: int
    answered_ns: int | None
    """When the first of an answer came."""
    code: str | None
    """The name of the gRPC status that a call ended with."""
    attributes: list[tuple[str, str | int]]

@final
class News:
    """What the data plane laid down since it was last asked."""

    asks: list[tuple[int, bytes]]
    """Serialised requests that it cannot read, each to be answered or refused by its number."""
    given_up: list[int]
    """Asks that nobody waits for any more."""
    suspects: list[tuple[str, int, str]]
    """Replicas that failed, with their serial and why; nothing goes there until `set_eligible`."""
    breakers: list[tuple[str, str, str]]
    """Breakers that opened or closed: replica, "open" or "closed", and why."""
    retries: list[tuple[str, str]]
    """Requests that went elsewhere, by id, and why."""

@final
class Plane:
    """The data plane: HTTP/2 from clients to replicas, on threads of its own. Thread safe."""

    port: int
    inflight: int
    """Requests in flight, and what has entered by `enter`."""
    queued: int
    """Requests that wait until fewer are in flight."""
    taken: int
    """How many ever were in flight."""
    connections: int
    """Of clients."""
    held_bytes: int
    """Memory of requests that no answer has begun to."""
    news_fd: int
    """Readable when there is news to take."""

    def __init__(
        self,
        router: Router,
        *,
        host: str,
        port: int,
        shards: int,
        max_inflight: int,
        queue_size: int,
        queue_timeout_s: float,
        max_open_calls: int,
        max_connections: int,
        max_held_bytes: int,
        retries: int,
        retry_budget: float,
        write_stall_s: float,
        behind: str | PathLike[str],
        first_token_buckets_s: Sequence[float],
        inter_token_buckets_s: Sequence[float],
        now_s: float,
        seed: int,
        sampling: tuple[bool, int] | None = None,
    ) -> None:
        """Holds its port from now on. OSError if the address cannot be had.

        Prompts are picked by `router`, whose other callers read a clock that now says `now_s`.
        `shards`: threads. Above `max_inflight` as many as `queue_size` wait for `queue_timeout_s`,
        by priority and then tenant after tenant (salt and extra key); the rest is refused.
        A request may be tried on `retries` more replicas, all of them on `retry_budget` (a part of
        the requests; 0: none is).
        `max_open_calls`: of Generate, in flight, waiting, or not read yet, and as many again of
        other methods. A call whose request would make all that are held more than `max_held_bytes`
        is refused. Beyond `max_connections` one that rests is closed for a new one. `behind`: the
        socket of the server that answers every other method. `sampling`: which requests are traced,
        see `take_traces`: whether those that are part of a trace are if the caller's span is
        sampled, and all others if the low 64 bits of their trace's id are less than this number.
        None: none is, and what callers say of traces passes through.
        """
    def start(self) -> None:
        """Take calls. Once; OSError if the system gives no thread."""
    def drain(self) -> None:
        """Close the port and tell clients to go; calls that run go on."""
    def stop(self) -> None:
        """End all that runs. Waits for the threads."""
    def set_client_tls(self, *, cert: bytes, key: bytes, client_ca: bytes | None = None) -> None:
        """Serve clients over TLS alone, by these PEM files from now on: before `start`, then again.

        With `client_ca` they need a certificate of one of its authorities. Connections that stand
        stay. ValueError, and no change, if they are no good.
        """
    def set_replica_tls(
        self,
        *,
        ca: bytes,
        identity: tuple[bytes, bytes] | None = None,
        server_name: str | None = None,
    ) -> None:
        """Dial replicas over TLS alone, as `set_client_tls`: their certificate is of one of `ca`.

        It has `server_name`, or else the host of the replica's address. `identity`: certificate
        and key to show to them.
        """
    def set_caller_tokens(self, tokens: list[bytes]) -> None:
        """All calls but health checks need one of these bearer tokens from now on."""
    def set_admin_tokens(self, tokens: list[bytes]) -> None:
        """Calls of the admin service need one of these, which open the rest as well."""
    def turned_away(self) -> list[tuple[str, int, str]]:
        """Clients that were not let in: reason, how often, address of the last."""
    def add_replica(
        self, replica: str, *, address: str, model: str, page_size: int, tokenizer_digest: bytes
    ) -> int:
        """Before it is made eligible. Returns its serial. RouterError if the address is none."""
    def remove_replica(self, replica: str, why: str) -> None:
        """Its calls end, or go elsewhere. Unknown: nothing happens."""
    def set_text(self, model: str, tokenizer_digest: bytes, codec: TextCodec | None) -> None:
        """Make tokens of the model's texts and chats by `codec`; None: ask for them."""

    def end_calls(self, replica: str, why: str, *, only_unanswered: bool = False) -> None:
        """As if its connections had broken; the next call opens another one."""
    def activity(self, replica: str) -> Activity:
        """Nothing, of one that is not there; so `totals`."""
    def totals(self, replica: str) -> TokenTotals: ...
    def set_bounds(
        self,
        *,
        max_inflight: int,
        queue_size: int,
        queue_timeout_s: float,
        max_open_calls: int,
        retries: int,
        retry_budget: float,
    ) -> None:
        """Other bounds for what comes from now on; who waits goes on if there is room."""
    def enter(self) -> bool:
        """One more is in flight, until `leave`; False if there are `max_inflight`."""
    def leave(self) -> None: ...
    def take_news(self) -> News: ...
    def answer(
        self, ask: int, *, model: str, tokens: Buffer, tokenizer_digest: bytes | None = None
    ) -> None:
        """What a request asks: its model, and the tokens (u32) by which trees know its prompt.

        With a digest they were made of text, and replace it for replicas of that digest. An ask
        that was given up is ignored, here and in `refuse`.
        """
    def refuse(self, ask: int, code: int, message: str) -> None:
        """The client gets this status (gRPC's number)."""
    def take_traces(self, most: int) -> list[tuple[int, list[Span]]]:
        """Traced requests that are over: the trace's id, and what the router did.

        The first span is the whole request's. Those that nobody takes are dropped in the end.
        """
    def dropped_traces(self) -> int: ...
    def picks(self) -> list[tuple[str, int]]:
        """By the name of their reason; none that is 0."""
    def retries(self) -> int:
        """Requests sent elsewhere because a replica failed before it answered."""
    def models(self) -> list[ModelReading]: ...

@final
class Trace:
    """Requests for `simulate`, in the order of their arrival."""

    def __init__(self, *, block_size: int) -> None:
        """`block_size`: tokens in a block, at least 1; else ValueError."""
    def add(
        self, arrived_s: float, prompt_tokens: int, output_tokens: int, hashes: Sequence[int]
    ) -> None:
        """`hashes`: of the prompt's blocks, any u64, each of the block with all before it.

        ValueError, and nothing changed, on a prompt without tokens, more or fewer hashes than it
        has blocks (the last one may be left out where it is not whole), a hash that followed
        another one before, or a time before the last one's.
        """
    def __len__(self) -> int: ...
    @property
    def num_blocks(self) -> int:
        """Different ones."""

@final
class SimulatedReplicas:
    def __init__(
        self,
        number: int,
        *,
        cache_tokens: int,
        order: str = "shortest",
        chunk_tokens: int = 4096,
        prefill_tokens_per_s: float = 20_000.0,
        decode_s: float = 0.02,
    ) -> None:
        """`number` replicas alike that cache `cache_tokens` each, in blocks of the trace.

        `order`: whether the prompt with the least left ("shortest") or that came first ("fcfs")
        goes on after `chunk_tokens`. `decode_s`: of a token of an answer that is decoded alone.
        ValueError on another order, or on nothing of what there must be some.
        """

@final
class ReplicaState:
    """One simulated replica when a request is to be placed."""

    in_flight: int
    """Requests there that have not ended."""
    requests: int
    """All that it ever got."""
    pending_tokens: int
    """Of waiting prompts, neither cached nor computed."""
    cached_blocks: int
    matched_blocks: int
    """Of the request's leading blocks."""

@final
class Simulated:
    """What came of a trace; lists by request or by replica."""

    first_token_s: list[float]
    """From each request's arrival."""
    prompt_tokens: int
    cached_tokens: int
    """Of them, what replicas had when they began."""
    matched_tokens: int
    """Of them, what the routers' mirrors showed on the picked replicas."""
    prefilled_tokens: list[int]
    requests: list[int]
    snapshots: int
    """That routers took, the first of each mirror included."""

class Picker(Protocol):
    """A rule in the place of routers, which sees the replicas as they are."""

    def pick(self, now_s: float, request: int, replicas: list[ReplicaState]) -> int:
        """Number of the replica for the request of that number."""
    def first_token(self, request: int) -> None: ...
    def ended(self, request: int) -> None: ...

def simulate(
    trace: Trace,
    replicas: SimulatedReplicas,
    *,
    rules: Rules = ...,
    seed: int = 0,
    routers: int = 1,
    lag_s: float = 0.0,
    loss: float = 0.0,
    progress: Callable[[int], object] | None = None,
) -> Simulated:
    """Play a trace by these rules, with the index and the pick of `Router`.

    `routers` share the requests by chance and see each other through the replicas' batches alone,
    which come `lag_s` late or, a part of them, not at all. `progress` is called now and then with
    the number of requests so far. Equal arguments give equal results.
    """

def simulate_picker(trace: Trace, replicas: SimulatedReplicas, picker: Picker) -> Simulated:
    """The same with `picker` instead of routers."""
