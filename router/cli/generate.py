"""`prefixlb generate`: one prompt, one streamed answer."""

import argparse
import dataclasses
import json

from rich.markup import escape

from proto.answer import Result
from proto.client import Client, Generation
from proto.errors import LBError
from router.cli import console
from router.cli.flag_types import utf8
from router.cli.request_flags import add_request_flags, credentials, request_options, text_prompt

EXAMPLES = """examples:
  prefixlb generate "The capital of France is" --max-tokens 8
  prefixlb generate --chat "Name three rivers." --temperature 0.7 --seed 1
  cat notes.txt | prefixlb generate - --json
  prefixlb generate -- "-1 is a number that"         a prompt that begins with a dash
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "generate",
        usage="%(prog)s [--flag VALUE ...] TEXT",
        help="send one prompt and print the answer",
        description="Send one prompt. The answer streams to stdout; which replica gave it, and "
        "how much of the prompt was cached there, goes to stderr.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "text",
        type=utf8,
        metavar="TEXT",
        help='the prompt, in quotes; "-" reads it from stdin',
    )
    parser.add_argument("--chat", action="store_true", help="send it as a user's chat message")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    add_request_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The answer goes to stdout as it comes; where it came from, to stderr."""
    prompt = text_prompt(args)
    with Client(args.router, credentials(args)) as client:
        generation = client.generate(prompt, **request_options(args))
        if args.json:
            for _ in generation:
                pass
            print(json.dumps(dataclasses.asdict(generation.result)))
        else:
            show_answer(generation)
    return 0


def show_answer(generation: Generation) -> None:
    """The answer on stdout as it comes, then on stderr where it came from."""
    begun = False
    try:
        for piece in generation:
            print(piece.text, end="", flush=True)
            begun = True
    except (LBError, KeyboardInterrupt):
        if begun:
            print()  # what is said about it has a line of its own
        raise
    print()
    console.stderr().print(f"[dim]{escape(summary(generation.result))}[/]", soft_wrap=True)


def summary(result: Result) -> str:
    """Where the answer came from and what it cost, on one line."""
    parts = [f"{result.cached_tokens} of {result.prompt_tokens} prompt tokens cached"]
    if result.route:
        parts.insert(0, f"{result.route.replica} ({result.route.reason})")
    if result.ttft_s is not None:
        parts.append(f"first token after {result.ttft_s:.2f} s")
    parts.append(f"{result.completion_tokens} tokens in {result.duration_s:.2f} s")
    return " · ".join(parts)
