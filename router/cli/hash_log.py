"""`prefixlb hash-log`: a log of prompts as a trace for `prefixlb sim`, without the prompts."""

import argparse
import json
import secrets
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from proto.errors import InvalidRequest
from proto.secret import read_hash_secret
from radix_rs import chain_hashes, derive_hash_key
from router.cli import piped_input
from router.cli.flag_types import whole
from router.cli.json_line import json_object

EXAMPLES = """examples:
  prefixlb hash-log < prompts.jsonl > log.jsonl && prefixlb sim --trace log.jsonl

Reads a JSON object a line: when the request came, its prompt as the engine's token ids, and how
long its answer was (default 0). Prompts share a prefix only with the same extra_key and cache_salt.
  {"timestamp": MILLISECONDS, "token_ids": [N, ...], "output_length": TOKENS,
   "extra_key": TEXT, "cache_salt": TEXT}
Writes hashes alone. Their key is drawn anew each time, so that nobody can look for a prompt in
them; logs made with the same --hash-secret-file can be joined.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "hash-log",
        help="turn a log of token ids into a trace of hashes for sim",
        description="Turn a log of token ids (stdin) into a trace of block hashes (stdout) that "
        "`prefixlb sim` plays.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--block-size",
        type=whole(1),
        default=16,
        metavar="N",
        help="tokens in a block; the routers' own is the default (default: %(default)s)",
    )
    parser.add_argument("--hash-secret-file", type=Path, metavar="FILE", help="key of the hashes")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Line by line."""
    try:
        secret = read_hash_secret(args.hash_secret_file)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    hash_key = derive_hash_key(secret or secrets.token_bytes(32))
    line = None
    for line in hashed(piped_input.lines(), args.block_size, hash_key):
        print(json.dumps(line))
    if line is None:
        raise InvalidRequest("stdin has no requests, expected a JSON object a line")
    return 0


def hashed(lines: Iterable[str], block_size: int, hash_key: bytes) -> Iterator[dict[str, Any]]:
    """Each line as `prefixlb sim` reads it."""
    for number, text in enumerate(lines, start=1):
        place = f"request {number}"
        line = json_object(text, place)
        if "timestamp" not in line:
            raise InvalidRequest(
                f'{place}: expected a JSON object with "timestamp" and "token_ids"'
            )
        tokens = _tokens(line.get("token_ids"), place)
        names = {name: _text(line.get(name, ""), name, place) for name in NAMESPACE}
        yield {
            "timestamp": line["timestamp"],
            "input_length": len(tokens),
            "output_length": line.get("output_length", 0),
            "block_size": block_size,
            "hash_ids": chain_hashes(
                tokens, hash_key=hash_key, model="", block_size=block_size, **names
            ),
        }


NAMESPACE = ("extra_key", "cache_salt")


def _tokens(ids: object, place: str) -> "array[int]":
    try:
        if isinstance(ids, list) and ids and all(type(each) is int for each in ids):
            return array("I", ids)
    except OverflowError:
        pass
    raise InvalidRequest(
        f"{place}: token_ids: expected a list of at least one whole number from 0 to 2^32 - 1"
    )


def _text(value: object, name: str, place: str) -> str:
    if isinstance(value, str):
        return value
    raise InvalidRequest(f"{place}: {name}: expected text")
