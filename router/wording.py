"""Replicas and picks in words, the same in the command and on the status page."""

from typing import Any

from google.protobuf.json_format import MessageToDict

from proto import keys
from proto.enum_names import short_name
from proto.prefixlb.v1.admin_pb2 import (
    BreakerState,
    Candidate,
    Departure,
    ExplainResponse,
    ListReplicasResponse,
    PickReason,
    ReplicaStatus,
)

EMPTY_FLEET = "no replica is in the fleet"


def fleet_notes(listed: ListReplicasResponse) -> list[str]:
    """What is to be said of a fleet beside its replicas, a line each."""
    if any(not each.refusal for each in listed.replicas):
        notes = [f"{_left(each)}: {each.why}" for each in listed.departures]
    else:
        left = ", ".join(f"{_left(each)} ({each.why})" for each in listed.departures)
        notes = [f"{EMPTY_FLEET}; {left}" if left else EMPTY_FLEET]
    if listed.redis_away_s:
        notes.append(redis_away(listed.redis_away_s))
    return notes


def _left(departure: Departure) -> str:
    return f"{departure.replica_id} left {departure.ago_s:.0f} s ago"


def redis_away(away_s: float) -> str:
    """That it is, and what follows."""
    return f"Redis has been away for {away_s:.0f} s: what mirrors and leases say may be old"


def fleet_as_dict(listed: ListReplicasResponse) -> dict[str, Any]:
    """What scripts are told of a fleet beside its replicas; names as in admin.proto."""
    named = ("replica_id", "address", "why", "ago_s")
    return {
        "redis_away_s": listed.redis_away_s,
        "departures": [{name: getattr(d, name) for name in named} for d in listed.departures],
    }


def replica_state(status: ReplicaStatus) -> str:
    """A replica in a few words."""
    if status.refusal:
        return f"refused: {status.refusal.partition(':')[0]}"
    if status.live and status.silent_s >= keys.SILENT_S:
        return f"live, silent {status.silent_s:.0f} s"
    if status.live and status.breaker > BreakerState.BREAKER_STATE_CLOSED:
        return f"live, breaker {breaker_state(status.breaker)}"
    return "draining" if status.load.draining else "live" if status.live else "suspect"


def breaker_state(breaker: BreakerState.ValueType) -> str:
    """Such as half open."""
    return short_name(BreakerState, breaker).replace("_", " ")


def objection(candidate: Candidate) -> str:
    """Why one that is not eligible is not."""
    if candidate.breaker > BreakerState.BREAKER_STATE_CLOSED:
        return f"breaker {breaker_state(candidate.breaker)}: only if there is no other"
    return "cannot take requests"


def explained_as_dict(explained: ExplainResponse) -> dict[str, Any]:
    """For scripts; names as in admin.proto."""
    pick = explained.pick
    named = ("replica_id", "address", "prompt_tokens", "matched_tokens")
    picked = {name: getattr(pick, name) for name in named}
    return {
        "pick": {**picked, "reason": short_name(PickReason, pick.reason)}
        if pick.replica_id
        else None,
        "refusal": explained.refusal,
        "candidates": [
            MessageToDict(
                each, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
            for each in explained.candidates
        ],
    }
