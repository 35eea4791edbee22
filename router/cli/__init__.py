"""The `prefixlb` command: one file a subcommand, each with `add_parser` and `run`."""

import argparse
import os
import sys
from collections.abc import Sequence

from proto.errors import LBError, Unavailable
from router.cli import audit, chat, console, demo, explain, generate, launch, model, status, up
from router.cli.request_flags import listens, nobody_listens

COMMANDS = (up, demo, generate, chat, status, explain, audit, launch, model)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="prefixlb", description="Prefix-aware load balancer for LLM inference."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    args, rest = parser.parse_known_args(argv)
    if "module" in args:
        return launch.run(args.module, rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return int(args.run(args))
    except Unavailable as error:
        console.error(str(error) if listens(args.router) else nobody_listens(args.router))
    except LBError as error:
        console.error(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
