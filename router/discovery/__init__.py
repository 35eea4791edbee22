"""Where the router learns which replicas there are."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from proto.prefixlb.v1.delta_pb2 import Lease


class Discovery(Protocol):
    """A source of views; each is the whole fleet, so a missed one does no harm.

    A view is what replicas claim: two of its leases may name one id or one address.
    """

    def views(self) -> AsyncIterator[Sequence[Lease]]:
        """Endless. While the source cannot be asked nothing comes, and the last view stands."""
