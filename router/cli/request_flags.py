"""Flags of the subcommands that send requests."""

import argparse
import os
from pathlib import Path
from typing import cast

from proto.credentials import Credentials
from proto.errors import InvalidRequest
from proto.request import Options, Prompt
from proto.token_file import parse_tokens
from proto.watched_files import read_file
from router.cli.flag_types import address, seconds, utf8, whole
from router.cli.piped_input import whole_input

DEFAULT_ROUTER = "127.0.0.1:30000"
MAX_UINT32, MAX_UINT64 = 2**32 - 1, 2**64 - 1


def add_router_flag(parser: argparse.ArgumentParser, what: str) -> None:
    """Whom to ask, and with what to come there."""
    parser.add_argument(
        "--router",
        type=router_address,
        metavar="HOST:PORT",
        default=os.environ.get("PREFIXLB_ROUTER") or DEFAULT_ROUTER,
        help=f"{what} (default: $PREFIXLB_ROUTER, else {DEFAULT_ROUTER})",
    )

    flags = parser.add_argument_group("where TLS is spoken, or a token asked for")
    for flag, metavar, help_text in (
        ("--tls-ca", "FILE", "speak TLS: authorities of the server's certificate, in PEM"),
        ("--tls-cert", "FILE", "certificate to show, in PEM"),
        ("--tls-key", "FILE", "its key"),
        ("--tls-server-name", "NAME", "of the certificate, if it is not the host's"),
        ("--token-file", "FILE", "file whose first token is sent"),
    ):
        variable = "PREFIXLB_" + flag.removeprefix("--").replace("-", "_").upper()
        flags.add_argument(
            flag,
            metavar=metavar,
            default=os.environ.get(variable) or None,
            help=f"{help_text} (default: ${variable})",
        )


def credentials(args: argparse.Namespace) -> Credentials:
    """With what the command comes to a server. Raises InvalidRequest or InvalidFile."""
    if (args.tls_cert is None) != (args.tls_key is None):
        raise InvalidRequest("--tls-cert and --tls-key need each other")
    if (args.tls_cert or args.tls_server_name) and args.tls_ca is None:
        raise InvalidRequest("--tls-cert and --tls-server-name need --tls-ca")
    token = ""
    if args.token_file:
        path = Path(args.token_file)
        token = parse_tokens(path, read_file(path))[0].decode()
    return Credentials(
        tls_ca=args.tls_ca,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        tls_server_name=args.tls_server_name or "",
        token=token,
    )


def router_address(text: str) -> str:
    """An address, which may be the environment's."""
    try:
        return address(text)
    except argparse.ArgumentTypeError as error:
        source = " from $PREFIXLB_ROUTER" if text == os.environ.get("PREFIXLB_ROUTER") else ""
        raise argparse.ArgumentTypeError(f"{error}{source}") from None


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    """What a request carries besides its prompt; defaults are the server's."""
    add_router_flag(parser, "a router, or one replica")
    flags = parser.add_argument_group("request")
    add = flags.add_argument
    add("--model", metavar="ID", help="needed where the router serves several")
    add(
        "--max-tokens",
        type=whole(1, MAX_UINT32),
        metavar="N",
        help="tokens to generate at most (default: 128)",
    )
    add("--temperature", type=float, metavar="T", help="0 (default) is greedy")
    add(
        "--top-k",
        type=whole(0, MAX_UINT32),
        metavar="K",
        help="keep the K most likely tokens; 0 (default) keeps all",
    )
    add(
        "--top-p",
        type=float,
        metavar="P",
        help="keep the fewest tokens that reach probability P (default: 1)",
    )
    add("--seed", type=whole(0, MAX_UINT64), metavar="N", help="same seed, same answer")
    add(
        "--stop",
        action="append",
        type=utf8,
        metavar="TEXT",
        help="end before this text; can be repeated",
    )
    add("--extra-key", metavar="KEY", help="such as a LoRA name; shares no cache with others")
    add("--cache-salt", metavar="SALT", help="tenant secret; shares no cache with others")
    add("--timeout", dest="timeout_s", type=seconds, metavar="S", help="seconds (default: none)")


def request_options(args: argparse.Namespace) -> Options:
    """The options given on the command line."""
    given = {name: getattr(args, name, None) for name in Options.__annotations__}
    return cast(Options, {name: value for name, value in given.items() if value is not None})


def text_prompt(args: argparse.Namespace) -> Prompt:
    """TEXT, or stdin where that is "-"; a chat's first message with --chat."""
    text = whole_input() if args.text == "-" else args.text
    return [{"role": "user", "content": text}] if args.chat else text
