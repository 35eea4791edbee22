"""Values of an enum as people and scripts read them."""

import re
from collections.abc import Sequence
from typing import Any, Protocol

from google.protobuf.descriptor import EnumDescriptor


class Enum(Protocol):
    """A generated enum."""

    @property
    def DESCRIPTOR(self) -> EnumDescriptor: ...
    def Name(self, number: Any) -> str: ...
    def values(self) -> Sequence[int]: ...


def short_name(enum: Enum, number: int) -> str:
    """ "equal" for AUDIT_OUTCOME_EQUAL of AuditOutcome; digits for what this version has not."""
    if number not in enum.values():
        return str(number)
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.DESCRIPTOR.name).upper() + "_"
    return enum.Name(number).removeprefix(prefix).lower()
