"""Tokens sent every 5.5 ms, beside calls whose bodies are large: the gaps a client sees.

`python -m tests.bench.beside_large [--shards N]`; needs h2load.
"""

import argparse
import gzip
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from proto.limits import MAX_MESSAGE_BYTES, MAX_PROMPT_TOKENS
from tests.bench.h2load import HTTP2, process
from tests.bench.router import framed, paced_replicas, request_file
from tests.bench.token_gaps import token_gaps
from tests.ports import free_port


@contextmanager
def flood(port: int, body: Path, *headers: str) -> Iterator[None]:
    """Four connections that send one such body after another."""
    flags = [flag for header in headers for flag in ("-H", header)]
    command = [
        *("h2load", "-t1", "-c4", "-m1", "-D", "60", "-d", str(body)),
        *("-H", "content-type: application/grpc", "-H", "te: trailers", *flags),
        f"http://127.0.0.1:{port}{HTTP2[0]}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        try:
            yield
        finally:
            child.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=1)
    shards = parser.parse_args().shards
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        # Both are read to their end and refused there, so that replicas have no part in it.
        ids = directory / "ids"
        whole = request_file(directory, MAX_PROMPT_TOKENS).read_bytes()
        ids.write_bytes(framed(whole[5:] + b"\x0a"))
        bomb = directory / "bomb"
        packed = gzip.compress(bytes(MAX_MESSAGE_BYTES + 1))
        bomb.write_bytes(b"\1" + framed(packed)[1:])
        replicas = stack.enter_context(paced_replicas(200, 5.5))
        port = free_port()
        module = (sys.executable, "-m", "tests.bench.lone_plane", port, shards)
        addresses = [f"127.0.0.1:{each}" for each in replicas]
        stack.enter_context(process(*module, *addresses, port=port))
        print("p99 gap of tokens sent every 5.5 ms")
        print(f"  direct                         {token_gaps(replicas[0]) * 1e3:6.1f} ms")
        print(f"  alone                          {token_gaps(port) * 1e3:6.1f} ms")
        with flood(port, ids):
            print(f"  beside a million ids a call    {token_gaps(port) * 1e3:6.1f} ms")
        with flood(port, bomb, "grpc-encoding: gzip"):
            print(f"  beside 16 MiB packed in 16 KB  {token_gaps(port) * 1e3:6.1f} ms")


if __name__ == "__main__":
    main()
