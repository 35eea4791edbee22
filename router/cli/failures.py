"""One sentence for a person about each way in which a request can fail."""

import argparse

from proto.errors import (
    DeadlineExceeded,
    Forbidden,
    LBError,
    NotServed,
    Unauthenticated,
    Unavailable,
)
from router.cli.readiness import serves, why_unreachable
from router.cli.request_flags import credentials


def sentence(error: LBError, args: argparse.Namespace) -> str:
    """What went wrong with the command `args`, and what to do about it."""
    address, timeout_s = getattr(args, "router", None), getattr(args, "timeout_s", None)
    if address and isinstance(error, Unavailable):
        mine = credentials(args)
        if reason := why_unreachable(address, mine):
            return reason
        return str(error) if serves(address, mine) else f"{address} is not ready: {error}"
    if address and isinstance(error, Unauthenticated | Forbidden):
        if not args.token_file:
            return f"{address} wants a token: name a file that holds one with --token-file"
        return f"{address} refuses the token of {args.token_file}: {error}"
    if address and isinstance(error, NotServed):
        return (
            f"{address} is no router: a replica answers `generate` and `chat` alone, "
            "and another server none of our calls"
        )
    if timeout_s and isinstance(error, DeadlineExceeded):
        return f"the answer was not complete after {timeout_s:g} s (--timeout)"
    return str(error)
