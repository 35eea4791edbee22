"""Who asks what, in which order: conversations of several assistants' users, interleaved."""

import random
from dataclasses import dataclass

from router.cli.demo.assistants import ASSISTANTS, Assistant

SEED = 7


@dataclass(frozen=True)
class Turn:
    """One question of a conversation; sent after the answer to the one before it."""

    number: int
    """Place in the order of sending, from 1."""
    assistant: Assistant
    user: str
    index: int
    """Place in its conversation, from 0."""

    @property
    def question(self) -> str:
        return self.assistant.users[self.user][self.index]

    @property
    def conversation(self) -> str:
        return f"{self.assistant.name}/{self.user}"


def schedule() -> list[Turn]:
    """All turns in a fixed order that mixes conversations as independent users would."""
    places = [
        (assistant, user)
        for assistant in ASSISTANTS
        for user, questions in assistant.users.items()
        for _ in questions
    ]
    random.Random(SEED).shuffle(places)
    said: dict[str, int] = {}
    turns = []
    for number, (assistant, user) in enumerate(places, start=1):
        index = said.get(user, 0)
        said[user] = index + 1
        turns.append(Turn(number, assistant, user, index))
    return turns
