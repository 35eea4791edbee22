"""Plays the workload against a router, several conversations at a time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from proto.answer import Result
from proto.client import AsyncClient
from proto.errors import LBError
from router.cli.demo.screen import Screen
from router.cli.demo.workload import Turn

MAX_TOKENS = 18
REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Played:
    """How one turn went: a result or an error."""

    turn: Turn
    result: Result | None = None
    error: str | None = None


async def play(
    router: str, turns: Sequence[Turn], *, concurrency: int, screen: Screen
) -> list[Played]:
    """Send all turns in their order, at most `concurrency` at a time, each with its history."""
    histories: dict[str, list[dict[str, str]]] = {}
    latest: dict[str, asyncio.Task[Played]] = {}
    places = asyncio.Semaphore(concurrency)

    async def one(turn: Turn) -> Played:
        try:
            return await _ask(client, turn, histories[turn.conversation], screen)
        finally:
            places.release()

    async with AsyncClient(router) as client, asyncio.TaskGroup() as group:
        tasks = []
        for turn in turns:
            await places.acquire()
            if before := latest.get(turn.conversation):
                await before
            system = {"role": "system", "content": turn.assistant.system}
            histories.setdefault(turn.conversation, [system])
            latest[turn.conversation] = group.create_task(one(turn))
            tasks.append(latest[turn.conversation])
    return [task.result() for task in tasks]


async def _ask(
    client: AsyncClient, turn: Turn, history: list[dict[str, str]], screen: Screen
) -> Played:
    """One turn; an answer becomes part of the history."""
    question = {"role": "user", "content": turn.question}
    generation = client.generate(
        [*history, question], max_tokens=MAX_TOKENS, timeout_s=REQUEST_TIMEOUT_S
    )
    text = ""
    screen.streaming(turn, text)
    try:
        async for piece in generation:
            text += piece.text
            screen.streaming(turn, text)
    except LBError as error:
        screen.failed(turn, str(error))
        return Played(turn, error=str(error))
    result = generation.result
    history += [question, {"role": "assistant", "content": result.text}]
    screen.answered(turn, result)
    return Played(turn, result=result)
