"""One sentence for a person about each way in which a request can fail."""

import argparse

from proto.errors import DeadlineExceeded, LBError, NotServed, Unavailable
from router.cli.readiness import serves, why_unreachable


def sentence(error: LBError, args: argparse.Namespace) -> str:
    """What went wrong with the command `args`, and what to do about it."""
    address, timeout_s = getattr(args, "router", None), getattr(args, "timeout_s", None)
    if address and isinstance(error, Unavailable):
        if reason := why_unreachable(address):
            return reason
        return str(error) if serves(address) else f"{address} is not ready: {error}"
    if address and isinstance(error, NotServed):
        return (
            f"{address} is no router: a replica answers `generate` and `chat` alone, "
            "and another server none of our calls"
        )
    if timeout_s and isinstance(error, DeadlineExceeded):
        return f"the answer was not complete after {timeout_s:g} s (--timeout)"
    return str(error)
