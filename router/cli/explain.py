"""`prefixlb explain`: where a prompt would go, and what every replica would cost."""

import argparse
import json

from rich.table import Table

from proto.enum_names import short_name
from proto.errors import InvalidRequest, from_status
from proto.prefixlb.v1.admin_pb2 import ExplainRequest, ExplainResponse, PickReason
from proto.prefixlb.v1.admin_pb2_grpc import AdminStub
from proto.request import Prompt, build_request
from router.cli import console
from router.cli.flag_types import utf8
from router.cli.request_flags import add_router_flag, credentials, request_options, text_prompt
from router.wording import explained_as_dict, objection

EXAMPLES = """examples:
  prefixlb explain --chat "Name three rivers."
  prefixlb explain --ids 1,15,9,2 --json
  prefixlb explain - < prompt.txt

The lowest cost is picked, or one within a hundredth of it. It is in tokens: what the replica would
compute first (ahead), what it has not cached of this prompt, times whom that delays, and what its
running requests take meanwhile.
"""
TIMEOUT_S = 10.0


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "explain",
        help="show each replica's match, load and cost for a prompt, and the pick",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "text", nargs="?", type=utf8, metavar="TEXT", help='the prompt; "-" reads stdin'
    )
    prompt.add_argument("--ids", metavar="N,N,...", help="the prompt as token ids")
    parser.add_argument("--chat", action="store_true", help="TEXT is a user's chat message")
    parser.add_argument("--model", metavar="ID", help="model, where the router serves several")
    parser.add_argument("--extra-key", metavar="KEY", help="as in the request")
    parser.add_argument("--cache-salt", metavar="SALT", help="as in the request")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_router_flag(parser, "the router to ask")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask, and print. Exit code 1 if no replica can be picked, or the picked one would refuse."""
    request = build_request(_prompt(args), request_options(args))
    mine = credentials(args)
    with mine.channel(args.router) as channel, from_status():
        explained = AdminStub(channel).Explain(
            ExplainRequest(request=request), timeout=TIMEOUT_S, metadata=mine.metadata
        )
    if args.json:
        print(json.dumps(explained_as_dict(explained)))
    else:
        out = console.stdout()
        out.print(candidate_table(explained))
        out.print(verdict(explained), markup=False)
    return 0 if explained.pick.replica_id and not explained.refusal else 1


def candidate_table(explained: ExplainResponse) -> Table:
    """One row a replica of the model, the picked one marked; tokens unless the column says else."""
    table = console.table(
        console.stdout(),
        *("", "replica", ">matched", ">expected", ">ahead", ">delayed requests"),
        *(">decode pressure", ">cost"),
    )
    for each in explained.candidates:
        figures = (each.ahead_tokens, each.delayed_requests, each.decode_pressure_tokens)
        table.add_row(
            ">" if each.replica_id == explained.pick.replica_id else "",
            each.replica_id if each.eligible else f"{each.replica_id} ({objection(each)})",
            str(each.matched_tokens),
            str(each.expected_tokens),
            *(f"{figure:.1f}" for figure in figures),
            f"{each.cost_tokens:.1f}" if each.eligible else "-",
        )
    return table


def verdict(explained: ExplainResponse) -> str:
    """The pick in one sentence."""
    pick = explained.pick
    if not pick.replica_id:
        return "no replica can take this prompt now"
    if explained.refusal:
        return f"{pick.replica_id} would refuse it: {explained.refusal}"
    return (
        f"{pick.replica_id} ({short_name(PickReason, pick.reason)}): {pick.matched_tokens} of "
        f"{pick.prompt_tokens} prompt tokens are cached there"
    )


def _prompt(args: argparse.Namespace) -> Prompt:
    if args.ids is not None:
        try:
            return [int(number) for number in args.ids.replace(",", " ").split()]
        except ValueError as error:
            raise InvalidRequest(
                f"--ids: expected whole numbers such as 1,15,9, got {args.ids!r}"
            ) from error
    return text_prompt(args)
