"""How both processes write their logs."""

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def configure_logs(level: str) -> None:
    """Lines on stderr. What gRPC's Python part says of a caller's bytes is left out."""
    logging.basicConfig(level=level, format=FORMAT)
    for name in ("grpc._cython.cygrpc", "asyncio"):
        logging.getLogger(name).addFilter(_says_nothing_of_bytes)


def _says_nothing_of_bytes(record: logging.LogRecord) -> bool:
    """Not a traceback, with those bytes, for each name or value that is no UTF-8."""
    if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
        return False
    text = record.getMessage()
    return not ("Invalid encoding" in text or "codec can't decode" in text)
