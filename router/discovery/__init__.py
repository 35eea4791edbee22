"""Where the router learns which replicas there are."""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from proto.prefixlb.v1.delta_pb2 import Lease


class Discovery(Protocol):
    """A source of views; each is the whole fleet by replica id, so a missed one does no harm."""

    def views(self) -> AsyncIterator[Mapping[str, Lease]]:
        """Endless. While the source cannot be asked nothing comes, and the last view stands."""
