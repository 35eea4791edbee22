"""`prefixlb chat`: a conversation; each turn sends the whole history, most of which is cached."""

import argparse
import sys
from collections.abc import Iterator

from proto.client import Client
from proto.errors import LBError, NotServed, Unavailable
from router.cli import console, piped_input
from router.cli.failures import sentence
from router.cli.flag_types import utf8
from router.cli.generate import show_answer
from router.cli.readiness import wait_until_serving
from router.cli.request_flags import add_request_flags, credentials, request_options

READY_TIMEOUT_S = 120.0

EXAMPLES = """examples:
  prefixlb chat --system "You are a patient SQL tutor."
  printf 'Hello!\\nAnd in French?\\n' | prefixlb chat --max-tokens 16
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "chat",
        usage="%(prog)s [--flag VALUE ...]",
        help="hold a conversation",
        description="A line is a message. Waits for a cluster that is still loading. Ctrl-C ends "
        "an answer; Ctrl-D, or the last line of a pipe, ends the conversation.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--system", type=utf8, metavar="TEXT", help="the assistant's instructions")
    add_request_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """One turn a line; a turn that fails or is cut off is not part of the history."""
    mine = credentials(args)
    wait_until_serving(args.router, mine, console.stderr(), timeout_s=READY_TIMEOUT_S)
    history = [{"role": "system", "content": args.system}] if args.system else []
    failed = False
    with Client(args.router, mine) as client:
        for line in messages():
            turn = [*history, {"role": "user", "content": line}]
            generation = client.generate(turn, **request_options(args))
            try:
                show_answer(generation)
            except (Unavailable, NotServed):
                raise
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                generation.cancel()
                continue
            except LBError as error:
                failed = True
                console.error(sentence(error, args))
                continue
            history = [*turn, {"role": "assistant", "content": generation.result.text}]
    return 1 if failed else 0


def messages() -> Iterator[str]:
    """What the user says: typed after a prompt with line editing, or the lines of a pipe."""
    if not sys.stdin.isatty():
        yield from piped_input.lines()
        return
    import readline  # noqa: F401  # importing it gives input() line editing and history

    while True:
        try:
            line = input("you> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            raise
        if line:
            yield line
