"""Who may see the status page: on this machine, by token, and not from another site's page."""

import asyncio
import logging
from collections.abc import Mapping
from http.client import HTTPMessage
from pathlib import Path

import pytest

from proto.errors import Forbidden, Unauthenticated
from proto.site import Asked
from proto.watched_files import PERIOD_S
from router.ui.gate import COOKIE, SESSION_S, TOLD_S, Gate
from tests.fakes import FakeClock
from tests.http_page import ask
from tests.live_router import live_router
from tests.test_tokens import ADMIN, CALLER, STRANGER, token_file

HERE = {"Host": "localhost:29000"}
FLEET = "/ui/api/fleet"


def asked(headers: Mapping[str, str]) -> Asked:
    message = HTTPMessage()
    for name, value in headers.items():
        message[name] = value
    return Asked("GET", FLEET, {}, message)


def gate_of_tokens(*tokens: str) -> tuple[Gate, FakeClock]:
    clock = FakeClock()
    gate = Gate(asks_token=True, wall_clock=clock)
    gate.use_tokens([token.encode() for token in tokens])
    return gate, clock


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:29000", "[::1]:29000"])
def test_without_a_token_names_of_this_machine_are_let_in(host: str) -> None:
    gate = Gate(asks_token=False)
    gate.check_origin(asked({"Host": host}))
    gate.check(asked({"Host": host}))


@pytest.mark.parametrize(
    "host",
    ["", "evil.example:29000", "10.0.0.1", "localhost.evil.example", "[", "127.0.0.1.nip.io"],
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(host: str) -> None:
    with pytest.raises(Forbidden, match="is not this machine"):
        Gate(asks_token=False).check_origin(asked({"Host": host}))


@pytest.mark.parametrize(
    "sent",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://localhost:8080"},
        {"Origin": "http://localhost:29000", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("asks_token", [True, False])
def test_another_sites_page_is_refused(sent: Mapping[str, str], asks_token: bool) -> None:
    with pytest.raises(Forbidden, match="another site"):
        Gate(asks_token=asks_token).check_origin(asked({**HERE, **sent}))


def test_its_own_page_is_let_in_by_whatever_name_it_was_opened() -> None:
    gate, _ = gate_of_tokens(CALLER)
    own = {"Host": "ui.example", "Origin": "https://UI.example", "Sec-Fetch-Site": "same-origin"}
    gate.check_origin(asked(own))


def test_a_token_opens_and_nothing_else_does() -> None:
    gate, _ = gate_of_tokens(CALLER, ADMIN)
    for right in (bearer(CALLER), bearer(ADMIN), {"Authorization": f"bearer  {ADMIN} "}):
        gate.check(asked(right))
    for wrong in ({}, bearer(STRANGER), bearer(""), bearer("é" * 20), {"Authorization": CALLER}):
        with pytest.raises(Unauthenticated):
            gate.check(asked(wrong))


def test_a_session_lasts_its_time_and_as_long_as_its_token_is_known() -> None:
    gate, clock = gate_of_tokens(CALLER, ADMIN)
    cookie = gate.sign_in(CALLER)
    assert "; HttpOnly; SameSite=Strict" in cookie and CALLER not in cookie
    session = {"Cookie": f"a=b; {cookie.partition(';')[0]}"}
    gate.check(asked(session))
    # Another router with the same file takes it too.
    other = Gate(asks_token=True, wall_clock=clock)
    other.use_tokens([ADMIN.encode(), CALLER.encode()])
    other.check(asked(session))
    other.use_tokens([ADMIN.encode()])
    with pytest.raises(Unauthenticated):
        other.check(asked(session))
    clock.advance(SESSION_S - 1)
    gate.check(asked(session))
    clock.advance(2)
    with pytest.raises(Unauthenticated):
        gate.check(asked(session))


def test_a_session_that_somebody_wrote_is_none() -> None:
    gate, _ = gate_of_tokens(CALLER)
    own = gate.sign_in(CALLER).partition(";")[0].partition("=")[2]
    expires, _, signature = own.partition(".")
    later = str(int(expires) + 1)
    for value in (f"{later}.{signature}", expires, f"{expires}.", f"{expires}.é", ".", "9" * 5000):
        with pytest.raises(Unauthenticated):
            gate.check(asked({"Cookie": f"{COOKIE}={value}"}))
    with pytest.raises(Unauthenticated):
        gate.check(asked({"Cookie": f"other={own}"}))


def test_wrong_tokens_are_told_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    gate, clock = gate_of_tokens(CALLER)
    for _ in range(3):
        for _ in range(100):
            with pytest.raises(Unauthenticated):
                gate.sign_in("not this one")
        clock.advance(TOLD_S)
    assert [each.getMessage() for each in caplog.records] == [
        f"wrong tokens on the status page times={times}" for times in (1, 100, 100)
    ]


def test_a_stale_token_locks_nobody_out_behind_the_same_address() -> None:
    gate, _ = gate_of_tokens(CALLER)
    for _ in range(1000):
        with pytest.raises(Unauthenticated):
            gate.check(asked(bearer(STRANGER)))
    gate.check(asked(bearer(CALLER)))


async def test_the_page_is_off_beyond_this_machine_and_where_calls_are_guarded(
    redis_url: str, tmp_path: Path
) -> None:
    tokens = token_file(tmp_path, CALLER)
    for settings in (
        {"metrics_host": "0.0.0.0"},
        {"auth_token_file": tokens},
        {"admin_token_file": tokens},
    ):
        async with live_router(redis_url, **settings) as router:
            for path in ("/ui", "/ui/", FLEET):
                page = await ask(router.running.metrics_port, path)
                assert page.status == 403 and "--ui-token-file opens it" in page.error
            assert (await ask(router.running.metrics_port, "/metrics")).status == 200


async def test_with_a_token_file_people_sign_in_and_scripts_bring_a_token(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tokens = token_file(tmp_path, CALLER)
    async with live_router(redis_url, metrics_host="0.0.0.0", ui_token_file=tokens) as router:
        port = router.running.metrics_port
        assert "tokens of the status page cross the network in clear" in caplog.text
        index = await ask(port, "/ui/")
        assert index.status == 200 and b"<title>prefixlb</title>" in index.body
        refused = await ask(port, FLEET)
        assert refused.status == 401 and refused.headers["WWW-Authenticate"] == "Bearer"
        assert (await ask(port, FLEET, headers=bearer(CALLER))).status == 200

        wrong = await ask(port, "/ui/api/session", post={"token": STRANGER})
        assert wrong.status == 401 and "Set-Cookie" not in wrong.headers
        signed_in = await ask(port, "/ui/api/session", post={"token": CALLER})
        cookie = {"Cookie": signed_in.headers["Set-Cookie"].partition(";")[0]}
        assert (await ask(port, FLEET, headers=cookie)).status == 200
        told = await ask(port, "/ui/api/session", headers=cookie)
        assert told.json == {"asks_token": True}
        signed_out = await ask(port, "/ui/api/session", post={}, headers=cookie)
        assert "Max-Age=0" in signed_out.headers["Set-Cookie"]

        large = {"Content-Length": "1000000"}
        assert (await ask(port, "/ui/api/explain", post=b"", headers=large)).status == 401
        assert (await ask(port, "/ui/api/session", post=b"", headers=large)).status == 413

        token_file(tmp_path, ADMIN)  # the old one is taken out
        async with asyncio.timeout(20 * PERIOD_S):
            while (await ask(port, FLEET, headers=cookie)).status != 401:  # noqa: ASYNC110 - polled
                await asyncio.sleep(PERIOD_S / 4)
    assert CALLER not in caplog.text and STRANGER not in caplog.text
