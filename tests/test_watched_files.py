"""Files that change while a process runs: when they are read again, and when that is told."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proto.errors import InvalidFile
from proto.watched_files import MAX_FILE_BYTES, Contents, WatchedFiles
from tests.live_router import until

PERIOD_S = 0.03


@dataclass
class User:
    """Takes two files whose words rhyme, which here means that they are equal."""

    used: list[Contents] = field(default_factory=list)
    refused: int = 0

    def use(self, contents: Contents) -> None:
        first, second = contents
        if first != second:
            raise InvalidFile(f"{first.decode()} does not rhyme with {second.decode()}")
        self.used.append(contents)

    def refuse(self) -> None:
        self.refused += 1


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        path.write_text("one")
    return paths


@asynccontextmanager
async def followed(files: list[Path]) -> AsyncIterator[User]:
    user = User()
    watched = WatchedFiles("rhymes", files, user.use, refused=user.refuse)
    following = asyncio.create_task(watched.follow(PERIOD_S))
    try:
        yield user
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def test_what_changed_is_used_once_and_what_did_not_never_again(files: list[Path]) -> None:
    async with followed(files) as user:
        assert user.used == [(b"one", b"one")]
        await asyncio.sleep(5 * PERIOD_S)
        for path in files:
            path.write_text("two")
        await until(lambda: len(user.used) > 1)
        await asyncio.sleep(5 * PERIOD_S)
        assert user.used[1:] == [(b"two", b"two")] and user.refused == 0


async def test_files_that_are_written_one_after_the_other_are_waited_for(
    files: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with followed(files) as user:
        for number in range(6):  # as long as something changes, nothing is judged
            part = files[0].with_name("part")
            part.write_text(f"part {number}")
            part.replace(files[0])
            await asyncio.sleep(PERIOD_S / 2)
        for path in files:
            path.write_text("whole")
        await until(lambda: len(user.used) > 1)
        assert user.used[1:] == [(b"whole", b"whole")] and user.refused == 0
        assert "no good" not in caplog.text


async def test_what_is_no_good_is_told_once_and_the_old_is_good_again_when_it_comes_back(
    files: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with followed(files) as user:
        files[1].write_text("another")
        await until(lambda: user.refused == 1)
        files[0].unlink()
        await until(lambda: user.refused == 2)
        await asyncio.sleep(5 * PERIOD_S)
        assert user.used == [(b"one", b"one")]
        told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert len(told) == 2
        assert "files=rhymes why='one does not rhyme with another'" in told[0]
        assert "first: No such file" in told[1]
        for path in files:
            path.write_text("one")
        await until(lambda: len(user.used) > 1)
        assert user.refused == 2 and "changed files are in use files=rhymes" in caplog.text


def test_a_start_needs_files_that_are_good(files: list[Path]) -> None:
    user = User()
    files[1].write_bytes(bytes(MAX_FILE_BYTES + 1))
    with pytest.raises(InvalidFile, match="second has more than 1048576 bytes"):
        WatchedFiles("rhymes", files, user.use, refused=user.refuse)
    files[1].write_text("another")
    with pytest.raises(InvalidFile, match="does not rhyme"):
        WatchedFiles("rhymes", files, user.use, refused=user.refuse)
