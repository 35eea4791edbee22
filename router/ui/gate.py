"""Who may see the status page, and from where."""

import hashlib
import hmac
import logging
import time
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

from proto.errors import Forbidden, Unauthenticated
from proto.exposure import is_loopback
from proto.site import Asked
from router.settings import RouterSettings

log = logging.getLogger(__name__)

COOKIE = "prefixlb-ui"
ATTRIBUTES = "Path=/ui; HttpOnly; SameSite=Strict"

SIGNED_OUT = f"{COOKIE}=; Max-Age=0; {ATTRIBUTES}"
"""A cookie that ends the session in this browser."""

SESSION_S = 12 * 3600
"""Then the token is asked for again."""


TOLD_S = 10.0
"""Between two log lines about wrong tokens."""


class Gate:
    """Lets in who is on this machine, or brings a token; and no other site's page.

    Without a token a browser on this machine is all that protects the page: a name that leads here
    although it is not this machine's (DNS rebinding) is refused by the Host header. With one that
    needs no list of names: a browser keeps the cookie of one name from every other.
    """

    def __init__(
        self,
        *,
        asks_token: bool,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.asks_token = asks_token
        self._wall_clock = wall_clock
        self._wrong = 0
        self._quiet_until_s = float("-inf")
        self._tokens: list[bytes] = []

    def use_tokens(self, tokens: list[bytes]) -> None:
        """These open it from now on, and sessions that others began end."""
        self._tokens = tokens

    def check_origin(self, asked: Asked) -> None:
        """Raises Forbidden for what another site's page asks."""
        host = asked.headers.get("Host", "")
        if not self.asks_token and not is_loopback(_parts(f"//{host}").hostname or ""):
            raise Forbidden(
                f"the Host {host!r} is not this machine: open the page by localhost or 127.0.0.1"
            )
        origin = asked.headers.get("Origin")
        elsewhere = origin is not None and _parts(origin).netloc.lower() != host.lower()
        if elsewhere or asked.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise Forbidden("another site's page may not ask this")

    def check(self, asked: Asked) -> None:
        """Raises Unauthenticated. Tries are not counted: a token is too long to be guessed."""
        if not self.asks_token or self._is_session(asked):
            return
        scheme, _, token = asked.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("sign in, or send 'authorization: Bearer TOKEN'")
        self._known(token.strip())

    def sign_in(self, token: str) -> str:
        """The cookie of a session. Raises as `check`."""
        known = self._known(token)
        expires_s = int(self._wall_clock()) + SESSION_S
        session = f"{expires_s}.{_signature(known, expires_s).decode()}"
        return f"{COOKIE}={session}; Max-Age={SESSION_S}; {ATTRIBUTES}"

    def _known(self, token: str) -> bytes:
        given = token.encode("utf-8", "replace")
        # All are compared: how long it takes tells nothing about any.
        equal = [known for known in self._tokens if hmac.compare_digest(known, given)]
        if not equal:
            self._tell_of_wrong_token()
            raise Unauthenticated("this token is not known")
        return equal[0]

    def _tell_of_wrong_token(self) -> None:
        self._wrong += 1
        if (now_s := self._wall_clock()) >= self._quiet_until_s:
            self._quiet_until_s = now_s + TOLD_S
            log.warning("wrong tokens on the status page times=%d", self._wrong)
            self._wrong = 0

    def _is_session(self, asked: Asked) -> bool:
        """Signed with a token that is known, so that every router with its file accepts it."""
        for cookie in asked.headers.get("Cookie", "").split(";"):
            name, _, value = cookie.strip().partition("=")
            expires, _, given = value.partition(".")
            if name == COOKIE and expires.isascii() and expires.isdecimal() and len(expires) < 20:
                right = [_signature(token, int(expires)) for token in self._tokens]
                signed = [hmac.compare_digest(each, given.encode()) for each in right]
                if any(signed) and self._wall_clock() < int(expires):
                    return True
        return False


def gate_of(settings: RouterSettings) -> Gate | None:
    """How the page is open; None if it is off.

    Without tokens of its own it is open on this machine alone, and only where all else is.
    """
    if settings.ui_token_file:
        return Gate(asks_token=True)
    guarded = settings.auth_token_file or settings.admin_token_file or settings.tls_client_ca
    if guarded or not is_loopback(settings.metrics_host):
        return None
    return Gate(asks_token=False)


def _parts(url: str) -> SplitResult:
    """All empty if it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _signature(token: bytes, expires_s: int) -> bytes:
    said = f"prefixlb status page until {expires_s}".encode()
    return hmac.new(token, said, hashlib.sha256).hexdigest().encode()
