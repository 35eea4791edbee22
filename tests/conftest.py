"""Fixtures that several subjects share: redis-server, authorities, the model, golden files."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from router.cli.model import model_path
from tests.authority import Authority
from tests.redis_process import redis_server


def pytest_configure() -> None:
    """In the background of a shell Ctrl-C is ignored, under nohup a closed terminal.

    Processes that tests start would inherit both; a handler they do not.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the answers into tests/traces")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models are faster on one thread, and threads that wait for each other at every matrix
    crawl where anything else runs beside.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def redis_process_url() -> Iterator[str]:
    """URL of a private redis-server that lives as long as the test session."""
    with redis_server() as url:
        yield url


@pytest.fixture
def redis_url(redis_process_url: str) -> str:
    """URL of an empty Redis."""
    with redis.Redis.from_url(redis_process_url) as client:
        client.flushall()
    return redis_process_url


@pytest.fixture
def no_thread_panics(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """A thread of the extension that panics says so on stderr, and nobody else does."""
    yield
    said = capfd.readouterr().err
    assert "panicked" not in said, said


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Whom a test's processes trust."""
    return Authority(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    """Whom they do not."""
    return Authority(tmp_path, "other")


def smollm2_file() -> Path:
    """Where `make model` puts SmolLM2-135M-Instruct."""
    path = model_path()
    if not path.exists():
        raise FileNotFoundError(f"no model at {path}: run make model")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model, a GGUF file. Mark tests that use it `model`."""
    return smollm2_file()
