"""The `prefixlb` command: one file a subcommand, each with `add_parser` and `run`."""

import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        try:
            from router.cli.command_line import run  # takes a second, and Ctrl-C may come in it

            return run(argv)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
