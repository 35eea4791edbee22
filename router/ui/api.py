"""What the status page asks for: as a script may, in JSON."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib.metadata import version
from typing import Any

from proto.enum_names import short_name
from proto.errors import (
    DeadlineExceeded,
    InvalidRequest,
    UnknownBranch,
    UnknownReplica,
)
from proto.prefixlb.v1.admin_pb2 import BreakerState, MirrorState, ReplicaStatus
from proto.request import Options, Prompt, build_request
from radix_rs import Branch, Plane, Router, RouterError
from router.admin import Admin
from router.fleet import Fleet
from router.fleet_report import FleetReport
from router.ui.history import PERIOD_S, History, Sample
from router.wording import (
    explained_as_dict,
    fleet_as_dict,
    fleet_notes,
    objection,
    replica_state,
)

MAX_BRANCHES = 200
"""Of a page of a mirror."""

USUAL_BRANCHES = 50

EXPLAIN_TIMEOUT_S = 30.0

OPTIONS = ("model", "extra_key", "cache_salt")


class Api:
    """Reads, and changes nothing; on any thread. To be made inside the running event loop."""

    def __init__(
        self,
        *,
        router: Router,
        plane: Plane,
        fleet: Fleet,
        report: FleetReport,
        admin: Admin,
        history: History,
        policy: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._router = router
        self._plane = plane
        self._fleet = fleet
        self._report = report
        self._admin = admin
        self._history = history
        self._policy = policy
        self._clock = clock
        self._wall_clock = wall_clock
        self._began_s = clock()
        self._loop = asyncio.get_running_loop()

    def fleet(self, query: Mapping[str, str]) -> dict[str, Any]:
        """The router, every replica now, and who has just left."""
        _only(query)
        recent, listed = self._history.recent(), self._report.listed()
        return {
            "router": {
                "version": version("prefixlb"),
                "policy": self._policy(),
                "up_s": self._clock() - self._began_s,
                "now_s": self._wall_clock(),
                "queued": self._plane.queued,
                "connections": self._plane.connections,
                "index_bytes": self._router.index_size_bytes,
                "index_max_bytes": self._router.index_max_bytes,
            },
            "replicas": [
                _replica(status, recent.get(status.lease.replica_id, (0, 0)))
                for status in listed.replicas
            ],
            **fleet_as_dict(listed),
            "notes": fleet_notes(listed),
        }

    def history(self, query: Mapping[str, str]) -> dict[str, Any]:
        """The last hour of the fleet, or of one replica's tokens: a list a figure."""
        _only(query, "replica")
        samples = self._history.samples()
        common = {"period_s": PERIOD_S, "at_s": [sample.at_s for sample in samples]}
        if (replica := query.get("replica")) is not None:
            self._check_known(replica)
            prompt, delivered = self._history.rates(replica)
            return {**common, "prompt": prompt, "delivered": delivered}
        names = [field.name for field in fields(Sample)]
        return {**common, **{name: [getattr(each, name) for each in samples] for name in names}}

    def tree(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of one replica's mirror: where prompts begin, or what is below a branch."""
        _only(query, "replica", "below", "start", "limit")
        replica = query.get("replica", "")
        member = self._check_known(replica)
        limit = _limit(query.get("limit", str(USUAL_BRANCHES)))
        below, start = _hash("below", query), _hash("start", query)
        try:
            page = self._router.branches(replica, below=below, start=start, limit=limit)
            mirror = self._router.mirror(replica)
        except RouterError as error:
            raise UnknownBranch(str(error)) from error
        used = self._history.used_within_s([each.unused for each in page.branches], page.clock)
        return {
            "replica": replica,
            "block_size": member.state.lease.block_size,
            "blocks": mirror.count,
            "forgotten": mirror.forgotten,
            "reaches_back_s": self._history.reaches_back_s,
            "branches": [_branch(*each) for each in zip(page.branches, used, strict=True)],
            "next": None if page.next is None else f"{page.next:016x}",
        }

    def explain(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Each replica's match, load and cost for a prompt, and the pick; as `prefixlb explain`."""
        request = build_request(_prompt(body), _options(body))
        asked = asyncio.run_coroutine_threadsafe(self._admin.explain(request), self._loop)
        try:
            explained = asked.result(EXPLAIN_TIMEOUT_S)
        except TimeoutError as error:
            asked.cancel()
            raise DeadlineExceeded(f"no answer within {EXPLAIN_TIMEOUT_S:.0f} s") from error
        shown = explained_as_dict(explained)
        for each, candidate in zip(shown["candidates"], explained.candidates, strict=True):
            each["objection"] = "" if candidate.eligible else objection(candidate)
        return shown

    def _check_known(self, replica: str) -> Any:
        member = self._fleet.members.get(replica)
        if member is None:
            raise UnknownReplica(f"no replica {replica!r} is in the fleet")
        return member


def _replica(status: ReplicaStatus, recent: tuple[int, int]) -> dict[str, Any]:
    load, lease = status.load, status.lease
    return {
        "id": lease.replica_id,
        "address": lease.address,
        "model": lease.model,
        "state": replica_state(status),
        "refusal": status.refusal,
        "live": status.live,
        "mirror": short_name(MirrorState, status.mirror),
        "breaker": short_name(BreakerState, status.breaker),
        "breaker_openings": status.breaker_openings,
        "other_tokenizer": status.other_tokenizer,
        "blocks": status.count,
        "cached_tokens": status.count * lease.block_size,
        "in_flight": status.in_flight,
        "running": load.running,
        "waiting": load.waiting,
        "pending_tokens": load.pending_tokens,
        "free_slots": load.free_slots,
        "evictable_slots": load.evictable_slots,
        "total_slots": load.total_slots,
        "lag_s": status.delta_lag_s,
        "silent_s": status.silent_s,
        "requests": status.requests,
        "prompt_tokens": status.prompt_tokens,
        "available_tokens": status.available_tokens,
        "captured_tokens": status.captured_tokens,
        "delivered_tokens": status.delivered_tokens,
        "recent_prompt_tokens": recent[0],
        "recent_delivered_tokens": recent[1],
        "gaps": status.gaps,
        "snapshots": status.snapshots,
        "epoch": f"{status.epoch:016x}",
        "seq": status.seq,
    }


def _branch(branch: Branch, used_within_s: float | None) -> dict[str, Any]:
    return {
        "first": f"{branch.first:016x}",
        "blocks": branch.blocks,
        "replicas": branch.replicas,
        "detached": branch.detached,
        "branches_below": branch.branches_below,
        "blocks_below": branch.blocks_below,
        "all_below": branch.all_below,
        "used_within_s": used_within_s,
    }


def _only(query: Mapping[str, Any], *known: str) -> None:
    """Nothing else is asked: a misspelt name would go unnoticed."""
    for name in query:
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else "none"
            raise InvalidRequest(f"unknown field {name[:40]!r}, expected {expected}")


def _hash(name: str, query: Mapping[str, str]) -> int | None:
    given = query.get(name)
    if given is None:
        return None
    if not (1 <= len(given) <= 16 and set(given) <= set("0123456789abcdef")):
        raise InvalidRequest(f"{name}: expected up to 16 hexadecimal digits, got {given[:40]!r}")
    return int(given, 16)


def _limit(given: str) -> int:
    if given.isascii() and given.isdecimal() and len(given) < 9 and 1 <= int(given) <= MAX_BRANCHES:
        return int(given)
    raise InvalidRequest(f"limit: expected 1 to {MAX_BRANCHES}, got {given[:40]!r}")


def _prompt(body: Mapping[str, Any]) -> Prompt:
    _only(body, "text", "tokens", "chat", *OPTIONS)
    text, tokens, chat = body.get("text"), body.get("tokens"), body.get("chat", False)
    if (text is None) == (tokens is None):
        raise InvalidRequest("expected either text or tokens")
    if not isinstance(chat, bool):
        raise InvalidRequest(f"chat: expected true or false, got {type(chat).__name__}")
    if text is not None:
        if not isinstance(text, str):
            raise InvalidRequest(f"text: expected a string, got {type(text).__name__}")
        return [{"role": "user", "content": text}] if chat else text
    # bool is an int to Python, and no token.
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise InvalidRequest("tokens: expected a list of whole numbers")
    if chat:
        raise InvalidRequest("chat goes with text, not with tokens")
    return tokens


def _options(body: Mapping[str, Any]) -> Options:
    options = Options()
    for name in OPTIONS:
        value = body.get(name, "")
        if not isinstance(value, str):
            raise InvalidRequest(f"{name}: expected a string, got {type(value).__name__}")
        if value:
            options[name] = value  # type: ignore[literal-required]
    return options
