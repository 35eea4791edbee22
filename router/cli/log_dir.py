"""A local cluster's logs: a directory that outlives the command only where something failed."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from router.cli import console


@dataclass
class LogDir:
    """A directory of this command's own."""

    path: Path
    worth_reading: bool = False
    """Something failed: the directory stays, and the command says where."""


@contextlib.contextmanager
def log_dir() -> Iterator[LogDir]:
    """Gone at the end of the block unless something failed, in it or as `worth_reading` says."""
    made = LogDir(Path(tempfile.mkdtemp(prefix="prefixlb-")))
    try:
        yield made
    except BrokenPipeError:
        raise
    except Exception:
        made.worth_reading = True
        raise
    finally:
        if made.worth_reading:
            console.stderr().print(f"logs are in {made.path}", soft_wrap=True)
        else:
            shutil.rmtree(made.path, ignore_errors=True)
