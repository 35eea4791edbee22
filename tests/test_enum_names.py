"""proto/enum_names.py"""

from proto.enum_names import short_name
from proto.prefixlb.v1.admin_pb2 import AuditOutcome, MirrorState, PickReason
from proto.prefixlb.v1.inference_pb2 import FinishReason


def test_a_value_is_named_without_its_enum() -> None:
    assert short_name(AuditOutcome, AuditOutcome.Value("AUDIT_OUTCOME_EQUAL")) == "equal"
    assert short_name(MirrorState, MirrorState.Value("MIRROR_STATE_STREAMING")) == "streaming"
    assert short_name(PickReason, PickReason.Value("PICK_REASON_PREFIX")) == "prefix"
    assert short_name(FinishReason, FinishReason.Value("FINISH_REASON_LENGTH")) == "length"


def test_a_value_of_a_newer_peer_is_its_number() -> None:
    assert short_name(AuditOutcome, 99) == "99"
