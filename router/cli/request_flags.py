"""Flags of the subcommands that send requests."""

import argparse
import os
import socket
from typing import cast

from proto.request import Options

DEFAULT_ROUTER = "127.0.0.1:30000"


def add_router_flag(parser: argparse.ArgumentParser, what: str) -> None:
    """Whom to ask."""
    parser.add_argument(
        "--router",
        metavar="HOST:PORT",
        default=os.environ.get("PREFIXLB_ROUTER") or DEFAULT_ROUTER,
        help=f"{what} (default: $PREFIXLB_ROUTER, else {DEFAULT_ROUTER})",
    )


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    """What a request carries besides its prompt; defaults are the server's."""
    add_router_flag(parser, "a router, or one replica")
    flags = parser.add_argument_group("request")
    add = flags.add_argument
    add("--model", metavar="ID", help="model, where the router serves several")
    add("--max-tokens", type=int, metavar="N", help="tokens to generate at most (default: 128)")
    add("--temperature", type=float, metavar="T", help="0 (default) is greedy")
    add("--top-k", type=int, metavar="K", help="keep the K most likely tokens")
    add("--top-p", type=float, metavar="P", help="keep tokens up to probability P")
    add("--seed", type=int, help="same seed, same answer")
    add("--stop", action="append", metavar="TEXT", help="end before this text; can be repeated")
    add("--extra-key", metavar="KEY", help="such as a LoRA name: separates prefixes")
    add("--cache-salt", metavar="SALT", help="tenant secret: separates prefixes")
    add("--timeout", dest="timeout_s", type=float, metavar="S", help="deadline in seconds")


def listens(address: str) -> bool:
    """Whether anybody accepts connections at host:port."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2.0):
            return True
    except (OSError, ValueError):
        return False


def nobody_listens(address: str) -> str:
    """What to tell a person then."""
    return (
        f"nobody listens at {address}. Start a cluster with `prefixlb up`, "
        "or name a router with --router or $PREFIXLB_ROUTER"
    )


def request_options(args: argparse.Namespace) -> Options:
    """The options given on the command line."""
    given = {name: getattr(args, name, None) for name in Options.__annotations__}
    return cast(Options, {name: value for name, value in given.items() if value is not None})
