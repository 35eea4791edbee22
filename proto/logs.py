"""How both processes write their logs: a sentence and `name=value` pairs, as text or as JSON."""

import json
import logging
import re
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"

PAIR = re.compile(r" (\w+)=%[^a-zA-Z]*([a-zA-Z])")
"""In the template of a message: a name and how its value is written."""

AS_THEY_ARE = (str, int, float, bool, type(None))
"""Values that JSON has, too."""


def configure_logs(level: str, log_format: LogFormat = "text") -> None:
    """Lines on stderr. What gRPC's Python part says of a caller's bytes is left out."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else logging.Formatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
    for name in ("grpc._cython.cygrpc", "asyncio"):
        logging.getLogger(name).addFilter(_says_nothing_of_bytes)


class JsonLines(logging.Formatter):
    """An object a line: `time`, `level`, `logger`, `event`, and the pairs, each under its name."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            **_event(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _event(record: logging.LogRecord) -> dict[str, object]:
    """The sentence and the pairs behind it, or the message as a whole if it is not made so."""
    template = str(record.msg)
    pairs = list(PAIR.finditer(template))
    arguments = record.args if isinstance(record.args, tuple) else ()
    sentence = template[: pairs[0].start()] if pairs else template
    if len(pairs) != len(arguments) or "%" in sentence:
        return {"event": record.getMessage()}
    values = {pair[1]: _value(pair, each) for pair, each in zip(pairs, arguments, strict=True)}
    return {"event": sentence, **values}


def _value(pair: re.Match[str], value: object) -> object:
    """As it is, if JSON has such values and text would show it whole; else as text has it."""
    if pair[2] in "sdr" and isinstance(value, AS_THEY_ARE):
        return value
    _, _, place = pair[0].partition("=")
    written = place % value
    return float(written) if pair[2] == "f" else written


def _says_nothing_of_bytes(record: logging.LogRecord) -> bool:
    """Not a traceback, with those bytes, for each name or value that is no UTF-8."""
    if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
        return False
    text = record.getMessage()
    return not ("Invalid encoding" in text or "codec can't decode" in text)
