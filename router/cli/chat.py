"""`prefixlb chat`: a conversation; each turn sends the whole history, most of which is cached."""

import argparse
import sys
from collections.abc import Iterator

from rich.markup import escape

from proto.client import Client
from proto.errors import LBError, Unavailable
from router.cli import console
from router.cli.generate import summary
from router.cli.request_flags import add_request_flags, request_options

EXAMPLES = """examples:
  prefixlb chat --system "You are a patient SQL tutor."
  printf 'Hello!\\nAnd in French?\\n' | prefixlb chat --max-tokens 16
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "chat",
        help="hold a conversation",
        description="A line is a message. Ends with Ctrl-D, or with the last line of a pipe.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--system", metavar="TEXT", help="the assistant's instructions")
    add_request_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """One turn a line; a turn that fails is not part of the history."""
    history = [{"role": "system", "content": args.system}] if args.system else []
    failed = False
    with Client(args.router) as client:
        for line in messages():
            turn = [*history, {"role": "user", "content": line}]
            generation = client.generate(turn, **request_options(args))
            try:
                for piece in generation:
                    print(piece.text, end="", flush=True)
            except Unavailable:
                raise
            except LBError as error:
                failed = True
                console.error(str(error))
                continue
            print()
            console.stderr().print(f"[dim]{escape(summary(generation.result))}[/]", soft_wrap=True)
            history = [*turn, {"role": "assistant", "content": generation.result.text}]
    return 1 if failed else 0


def messages() -> Iterator[str]:
    """What the user says: typed after a prompt with line editing, or the lines of a pipe."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    import readline  # noqa: F401  # importing it gives input() line editing and history

    while True:
        try:
            line = input("you> ").strip()
        except EOFError:
            print()
            return
        if line:
            yield line
