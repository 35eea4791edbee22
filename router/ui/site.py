"""Paths under /ui: the page's own files, which hold no secret, and what they ask."""

import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc

from proto.errors import Forbidden, InvalidRequest, LBError, Unavailable
from proto.site import Answer, Asked
from router.ui.gate import SIGNED_OUT, Gate

log = logging.getLogger(__name__)

ROOT = "/ui"
ASKED = f"{ROOT}/api/"
SESSION = f"{ASKED}session"

MAX_SIGN_IN_BYTES = 4096
"""Of who is not let in yet."""

MAX_ASKED_BYTES = 2**20
"""Of others: some 150,000 token ids. JSON is read by Python, which holds up all else meanwhile, so
larger prompts are asked about by gRPC (`prefixlb explain`).
"""

HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Of every answer: nothing from elsewhere is loaded, and nobody embeds it."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
"""Of errors, for who asks in HTTP; any other one is our own failure."""

Read = Callable[[Mapping[str, str]], Any]
"""From the query to what is answered."""

Posted = Callable[[Mapping[str, Any]], Any]
"""The same, from the body."""


class StatusSite:
    """What is under /ui. Without a gate it is off, and says how it is turned on."""

    def __init__(self, gate: Gate | None) -> None:
        self._gate = gate
        self._files = _files(Path(__file__).parent / "static")
        self._reads: Mapping[str, Read] = {}
        self._posted: Mapping[str, Posted] = {}

    def open(self, reads: Mapping[str, Read], posted: Mapping[str, Posted]) -> None:
        """Answer these by name from now on, for who is let in."""
        self._reads, self._posted = reads, posted

    def has(self, path: str) -> bool:
        return path == ROOT or path.startswith(f"{ROOT}/")

    def admits(self, asked: Asked) -> int | Answer:
        try:
            gate = self._opened()
            if asked.path == SESSION:
                return MAX_SIGN_IN_BYTES
            gate.check_origin(asked)
            gate.check(asked)
        except LBError as error:
            return _refusal(error)
        return MAX_ASKED_BYTES

    def _opened(self) -> Gate:
        if self._gate is None:
            raise Forbidden(
                "the status page is off: --ui-token-file opens it to who has a token, and on a "
                "router that only this machine reaches and that asks for none it is open"
            )
        return self._gate

    def answer(self, asked: Asked) -> Answer:
        try:
            gate = self._opened()
            if asked.path.startswith(ASKED):
                return self._ask(gate, asked)
        except LBError as error:
            return _refusal(error)
        if asked.path == ROOT:
            # Relative, so that a proxy may serve it below a path of its own.
            return _answer(HTTPStatus.PERMANENT_REDIRECT, headers=(("Location", "ui/"),))
        if asked.method != "GET":
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": f"GET {asked.path}"})
        file = self._files.get(asked.path.removeprefix(f"{ROOT}/") or "index.html")
        if file is None:
            return _json(HTTPStatus.NOT_FOUND, {"error": f"there is no {asked.path}"})
        body, kind = file
        return _answer(HTTPStatus.OK, body, (("Content-Type", kind), ("Cache-Control", "no-cache")))

    def _ask(self, gate: Gate, asked: Asked) -> Answer:
        gate.check_origin(asked)
        if asked.path == SESSION:
            return _session(gate, asked)
        gate.check(asked)
        name = asked.path.removeprefix(ASKED)
        known = self._reads if asked.method == "GET" else self._posted
        if not (self._reads or self._posted):
            raise Unavailable("the router is starting")
        if name in known:
            given: Any = asked.query if asked.method == "GET" else _object(asked)
            return _json(HTTPStatus.OK, known[name](given))
        if name in self._reads or name in self._posted:
            wanted = "GET" if name in self._reads else "POST"
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": f"{wanted} {asked.path}"})
        names = ", ".join(sorted([*self._reads, *self._posted]))
        said = f"there is no {asked.path}, but {ASKED} and one of: {names}"
        return _json(HTTPStatus.NOT_FOUND, {"error": said})


def _session(gate: Gate, asked: Asked) -> Answer:
    """GET says whether one is needed and there; POST begins it by a token, or ends it without."""
    if asked.method == "GET":
        gate.check(asked)
        return _json(HTTPStatus.OK, {"asks_token": gate.asks_token})
    token = _object(asked).get("token")
    if token is None:
        return _json(HTTPStatus.OK, {}, (("Set-Cookie", SIGNED_OUT),))
    if not isinstance(token, str):
        raise InvalidRequest(f"token: expected a string, got {type(token).__name__}")
    if not gate.asks_token:
        raise InvalidRequest("this page asks for no token")
    return _json(HTTPStatus.OK, {}, (("Set-Cookie", gate.sign_in(token)),))


def _object(asked: Asked) -> Mapping[str, Any]:
    """The body. Its type is asked for because a form of another site cannot send it."""
    kind = asked.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(f"expected a body of type application/json, got {kind or 'none'!r}")
    try:
        body = json.loads(asked.body)
    except (ValueError, RecursionError) as error:
        # Not its own words: they may be the prompt's.
        raise InvalidRequest("the body is no JSON") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f"expected a JSON object, got {type(body).__name__}")
    return body


def _refusal(error: LBError) -> Answer:
    status = STATUSES.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    headers: tuple[tuple[str, str], ...] = ()
    if status is HTTPStatus.UNAUTHORIZED:
        headers = (("WWW-Authenticate", "Bearer"),)
    return _json(status, {"error": str(error)}, headers)


def _json(status: HTTPStatus, value: Any, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    kind = ("Content-Type", "application/json"), ("Cache-Control", "no-store")
    return _answer(status, json.dumps(value).encode(), (*kind, *headers))


def _answer(
    status: HTTPStatus, body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()
) -> Answer:
    return Answer(status, body, (*headers, *HEADERS))


def _files(directory: Path) -> dict[str, tuple[bytes, str]]:
    """By name, with its type."""
    found = (path for path in directory.iterdir() if path.suffix in TYPES)
    return {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in found}
