"""All subcommands under one parser, and what is said when one of them fails."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from proto.errors import LBError
from proto.unknown_flags import meant, refuse
from router.cli import (
    audit,
    chat,
    console,
    demo,
    explain,
    generate,
    hash_log,
    launch,
    model,
    sim,
    status,
    top,
    up,
)
from router.cli.failures import sentence

COMMANDS = (up, demo, generate, chat, status, top, explain, audit, sim, hash_log, launch, model)

EXAMPLES = """examples:
  prefixlb demo                                      see what it brings, in three minutes
  prefixlb up --replicas 3                           a cluster on this machine
  prefixlb sim --trace log.jsonl                     what it would bring you
  prefixlb generate --chat "Name three rivers."      ask it, from another terminal

`prefixlb COMMAND --help` lists the flags of a command, with examples. Where a router is asked,
--router HOST:PORT or $PREFIXLB_ROUTER says which.
"""


class Parser(argparse.ArgumentParser):
    """Takes flags by their whole names: what is short for one today may be for two tomorrow."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)


def run(argv: Sequence[str] | None) -> int:
    """The exit code of a command line; without a command, the help."""
    given = sys.argv[1:] if argv is None else argv
    parser = Parser(
        prog="prefixlb",
        description="Prefix-aware load balancer for LLM inference.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"prefixlb {version('prefixlb')}")
    commands: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", parser_class=Parser
    )
    for command in COMMANDS:
        command.add_parser(commands)
    known = commands.choices
    if given and not given[0].startswith("-") and given[0] not in known:
        advice = meant(given[0], known) or f", expected one of {', '.join(known)}"
        parser.error(f"unknown command {given[0]!r}{advice}")
    args, rest = parser.parse_known_args(given)
    if "module" in args:
        return launch.run(args.module, rest)
    if rest:
        is_prompt = "text" in args and not any(each.startswith("-") for each in rest)
        advice = "; a prompt of several words goes in quotes" if is_prompt else ""
        refuse(known.get(args.command, parser), rest, advice)
    if "run" not in args:
        parser.print_help()
        return 0
    try:
        return int(args.run(args))
    except LBError as error:
        console.error(sentence(error, args))
        return 1
