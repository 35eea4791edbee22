"""Certificates in files: those that are no good, and those that change while they are in use."""

import asyncio
import re
import ssl
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from proto.credentials import Credentials
from proto.errors import InvalidFile
from proto.tls_files import TlsFiles
from proto.watched_files import PERIOD_S
from radix_rs import derive_hash_key
from replica.lifecycle import run
from replica.settings import ReplicaSettings
from router.__main__ import main
from tests.authority import EXPIRED, Authority, Pair, Secret, answers, tls_settings
from tests.live_router import live_router
from tests.replica_rig import replica_rig


async def peer_serial(port: int, ca: Path, credentials: Credentials) -> str:
    """Of the certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    context.set_alpn_protocols(["h2"])
    if credentials.tls_cert is not None:
        context.load_cert_chain(credentials.tls_cert, credentials.tls_key)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"]).zfill(40)
    finally:
        writer.close()


async def shows(number: str, port: int, ca: Path, credentials: Credentials) -> None:
    """Return once new connections are shown that certificate."""
    while await peer_serial(port, ca, credentials) != number:  # noqa: ASYNC110 - a process
        await asyncio.sleep(0.05)


def serial(pair: Pair) -> str:
    number = x509.load_pem_x509_certificates(pair.cert.read_bytes())[0].serial_number
    return f"{number:X}".zfill(40)


def spoilt(authority: Authority, other: Authority, how: str) -> tuple[Pair, str]:
    """A pair that is no good, and what is to be said of it."""
    good, strange = authority.issue("good"), other.issue("x")
    match how:
        case "missing":
            return Pair(good.cert, good.key.with_name("none")), "cannot read .*none: No such file"
        case "expired":
            expired = authority.issue("old", expires=EXPIRED)
            return expired, r"in .*old\.pem is valid from .* to .* UTC, and not now"
        case "mismatched":
            return Pair(good.cert, strange.key), r"key in .*x\.key is not that of .*good\.pem"
        case "swapped":
            return Pair(good.key, good.cert), r"good\.key holds no certificates"
        case "empty":
            good.key.write_bytes(b"")
            return good, r"good\.key holds no private key"
    raise ValueError(how)


@pytest.mark.parametrize("how", ["missing", "expired", "mismatched", "swapped", "empty"])
def test_a_start_with_files_that_are_no_good_says_which_and_why(
    authority: Authority, other: Authority, how: str
) -> None:
    pair, said = spoilt(authority, other, how)
    with pytest.raises(InvalidFile, match=said):
        TlsFiles(pair.cert, pair.key).read()


def test_a_router_does_not_start_without_its_certificate(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = authority.issue("router", expires=EXPIRED)
    flags = ["--port", "0", "--metrics-port", "0"]
    assert main([*flags, "--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]) == 2
    assert "and not now" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*flags, "--tls-cert", str(pair.cert)])
    assert "--tls-cert and --tls-key need each other" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*flags, "--tls-client-ca", str(authority.ca)])
    assert "--tls-client-ca needs --tls-cert" in capsys.readouterr().err


@pytest.mark.redis
async def test_certificates_and_their_authority_change_under_load_and_no_request_fails(
    redis_url: str, authority: Authority, other: Authority, tmp_path: Path
) -> None:
    """Router and replica go by one Secret; in the end all is of another authority."""
    mounted = Secret(tmp_path / "mounted")
    shown = Pair(mounted.path / "tls.pem", mounted.path / "tls.key")
    both, of_both = authority.ca.read_bytes() + other.ca.read_bytes(), tmp_path / "both.pem"
    of_both.write_bytes(both)

    def next_version(signer: Authority, trusted: bytes) -> str:
        """The number of its certificate."""
        directory = mounted.next()
        (directory / "ca.pem").write_bytes(trusted)
        pair = signer.issue("tls", into=directory)
        mounted.swap()
        return serial(pair)

    next_version(authority, authority.ca.read_bytes())
    clients = Authority(tmp_path, "clients")
    client = clients.issue("client", "client")
    mine = Credentials(of_both, client.cert, client.key)
    async with (
        replica_rig(derive_hash_key(b""), **tls_settings(shown, mounted.path / "ca.pem")) as rig,
        live_router(
            redis_url,
            listed=[f"127.0.0.1:{rig.replica.port}"],
            credentials=mine,
            **tls_settings(shown, clients.ca),
            replica_tls_ca=mounted.path / "ca.pem",
            replica_tls_cert=shown.cert,
            replica_tls_key=shown.key,
        ) as router,
    ):
        port, plane = router.running.port, router.parts.plane
        await router.ready()
        stop = asyncio.Event()
        done: list[bool] = []

        async def keep_asking(number: int) -> None:
            while not stop.is_set():
                if number % 2:  # over a connection that stays
                    answer = await router.generate([number, 2, 3, 4])
                    done.append(answer.code is grpc.StatusCode.OK)
                else:  # over a new one each time
                    done.append(await answers(port, mine))

        asking = [asyncio.create_task(keep_asking(number)) for number in range(6)]
        for signer, trusted in (
            (authority, both),
            (other, both),
            (other, other.ca.read_bytes()),
        ):
            number = next_version(signer, trusted)
            async with asyncio.timeout(10 * PERIOD_S):
                await shows(number, port, of_both, mine)
                peer = Credentials(of_both, shown.cert, shown.key)
                await shows(number, rig.replica.port, of_both, peer)
        stop.set()
        await asyncio.gather(*asking)
        assert len(done) > 20 and all(done)
        plane.end_calls(f"127.0.0.1:{rig.replica.port}", "to be dialled anew")
        async with asyncio.timeout(5):
            # A call may still meet the old connection.
            while (await router.generate([1, 2])).code is not grpc.StatusCode.OK:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await answers(port, mine)
        assert 'certificate_expiry_timestamp_seconds{files="replica-tls"}' in await router.metrics()


@pytest.mark.redis
async def test_a_change_to_something_that_is_no_good_is_told_once_and_changes_nothing(
    redis_url: str, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mounted = Secret(tmp_path / "mounted")
    first = serial(authority.issue("tls", into=mounted.next()))
    mounted.swap()
    shown = Pair(mounted.path / "tls.pem", mounted.path / "tls.key")
    mine = authority.credentials()
    async with live_router(redis_url, credentials=mine, **tls_settings(shown)) as router:
        authority.issue("tls", into=mounted.next(), expires=EXPIRED)
        mounted.swap()
        await asyncio.sleep(5 * PERIOD_S)
        (told,) = [r.getMessage() for r in caplog.records if "no good" in r.getMessage()]
        assert "files=tls" in told and "and not now" in told
        assert 'prefixlb_router_refused_files_total{files="tls"} 1.0' in await router.metrics()
        assert await peer_serial(router.running.port, authority.ca, mine) == first
        after = serial(authority.issue("tls", into=mounted.next()))
        mounted.swap()
        async with asyncio.timeout(10 * PERIOD_S):
            await shows(after, router.running.port, authority.ca, mine)


def test_a_replica_without_a_good_certificate_ends_before_it_loads_its_model(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = authority.issue("r0", expires=EXPIRED)
    settings = ReplicaSettings.model_validate({"model": "nowhere", "port": 0, **tls_settings(pair)})
    assert run(settings, b"") == 2
    assert re.fullmatch(
        r"prefixlb replica: .*r0\.pem is valid from .*, and not now\n", capsys.readouterr().err
    )
