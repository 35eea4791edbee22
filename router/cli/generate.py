"""`prefixlb generate`: one prompt, one streamed answer."""

import argparse
import dataclasses
import json
import sys

from rich.markup import escape

from proto.answer import Result
from proto.client import Client
from proto.request import Prompt
from router.cli import console
from router.cli.request_flags import add_request_flags, request_options

EXAMPLES = """examples:
  prefixlb generate "The capital of France is" --max-tokens 8
  prefixlb generate --chat "Name three rivers." --temperature 0.7 --seed 1
  cat notes.txt | prefixlb generate - --json
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "generate",
        help="send one prompt and print the answer",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("text", help='the prompt; "-" reads it from stdin')
    parser.add_argument("--chat", action="store_true", help="as a user's chat message")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    add_request_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The answer goes to stdout as it comes; where it came from, to stderr."""
    text = sys.stdin.read() if args.text == "-" else args.text
    prompt: Prompt = [{"role": "user", "content": text}] if args.chat else text
    with Client(args.router) as client:
        generation = client.generate(prompt, **request_options(args))
        for piece in generation:
            if not args.json:
                print(piece.text, end="", flush=True)
    if args.json:
        print(json.dumps(dataclasses.asdict(generation.result)))
    else:
        print()
        console.stderr().print(f"[dim]{escape(summary(generation.result))}[/]", soft_wrap=True)
    return 0


def summary(result: Result) -> str:
    """Where the answer came from and what it cost, on one line."""
    parts = [f"{result.cached_tokens} of {result.prompt_tokens} prompt tokens cached"]
    if result.route:
        parts.insert(0, f"{result.route.replica} ({result.route.reason})")
    if result.ttft_s is not None:
        parts.append(f"first token after {result.ttft_s:.2f} s")
    parts.append(f"{result.completion_tokens} tokens in {result.duration_s:.2f} s")
    return " · ".join(parts)
