"""`python -m router`: settings, then the process that they describe, until it is told to end."""

import asyncio
import logging
import sys
from functools import partial

from prometheus_client import disable_created_metrics

from proto.errors import InvalidFile, Unavailable
from proto.logs import configure_logs
from proto.secret import read_hash_secret
from proto.signals import EndSignals
from radix_rs import derive_hash_key
from router.allocator import bound_what_is_kept
from router.process import running
from router.reload import Read
from router.settings import RouterSettings, parse_settings, read_settings

log = logging.getLogger("router")


async def serve(settings: RouterSettings, hash_key: bytes, read: Read) -> None:
    """Serve until a signal, then drain; a second signal ends the draining."""
    signals = EndSignals()
    async with running(settings, hash_key, read) as router:
        await signals.drained(partial(router.drain, settings.drain_timeout_s))
        log.info("router ends in_flight=%d", router.parts.admission.inflight)


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 after a signal, 1 if a port is taken, 2 for a bad setting or file."""
    arguments = sys.argv[1:] if arguments is None else arguments
    settings = read_settings(arguments)
    configure_logs(settings.log_level, settings.log_format)
    bound_what_is_kept()
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the page
    try:
        hash_key = derive_hash_key(read_hash_secret(settings.hash_secret_file))
    except ValueError as error:
        print(f"prefixlb router: --hash-secret-file: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(serve(settings, hash_key, partial(parse_settings, arguments)))
    except (InvalidFile, Unavailable) as error:
        print(f"prefixlb router: {error}", file=sys.stderr)
        return 1 if isinstance(error, Unavailable) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
