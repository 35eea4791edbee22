"""Generate the Python modules of proto/prefixlb: `python -m proto.generate [--check]`.

protoc names modules by their path under proto/; inside the distribution they live in the
package `proto`, so imports between them are rewritten.
"""

import re
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).parent
PACKAGE_IMPORT = re.compile(r"^(from|import) prefixlb\b", re.MULTILINE)


def generate(out: Path) -> list[Path]:
    """Write all generated modules under `out` and return their paths relative to it."""
    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("prefixlb/v1/*.proto"))
    well_known = files("grpc_tools") / "_proto"
    run = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"-I{well_known}"]
        + [f"--{plugin}_out={out}" for plugin in ("python", "grpc_python", "mypy", "mypy_grpc")]
        + sources,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # where a plugin tells each file it writes
        text=True,
    )
    if run.returncode:
        sys.exit(f"{run.stdout}protoc failed with exit code {run.returncode}")
    generated = sorted(path.relative_to(out) for path in out.glob("prefixlb/v1/*_pb2*"))
    for path in generated:
        text = PACKAGE_IMPORT.sub(r"\1 proto.prefixlb", (out / path).read_text())
        (out / path).write_text(text)
    return generated


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        with tempfile.TemporaryDirectory() as scratch:
            fresh = generate(Path(scratch))
            stale = [
                path
                for path in fresh
                if not (ROOT / path).exists()
                or (ROOT / path).read_text() != (Path(scratch) / path).read_text()
            ]
        for path in stale:
            print(
                f"proto/{path} differs from what the .proto files give: run make gen",
                file=sys.stderr,
            )
        return 1 if stale else 0
    generate(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
