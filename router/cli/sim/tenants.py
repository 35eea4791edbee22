"""Made requests: tenants with a system prompt each, whose users hold conversations."""

import random

from router.cli.sim.workload import Request, Workload

REQUESTS = 12_000
REQUESTS_PER_S = 20.0
SYSTEM_BLOCKS = (4, 24)
FIRST_BLOCKS, TURN_BLOCKS = (1, 2), (1, 3)
OUTPUT_TOKENS = (50, 500)
TURNS = 4
"""Of a conversation, on average."""

MAX_LIVE = 400
"""Conversations that may go on."""


def make(requests: int, tenants: int, block_size: int, seed: int) -> Workload:
    """Few tenants ask most (Zipf's law); requests come independently of each other (Poisson)."""
    rng = random.Random(seed)
    last = -1

    def fresh(least: int, most: int) -> list[int]:
        nonlocal last
        number = rng.randint(least, most)
        last += number
        return list(range(last - number + 1, last + 1))

    system_prompts = [fresh(*SYSTEM_BLOCKS) for _ in range(tenants)]
    weights = [1 / (rank + 1) for rank in range(tenants)]
    live: list[list[int]] = []
    made: list[Request] = []
    now_s = 0.0
    while len(made) < requests:
        now_s += rng.expovariate(REQUESTS_PER_S)
        if live and rng.random() < 1 - 1 / TURNS:
            place = rng.randrange(len(live))
            blocks = live[place] + fresh(*TURN_BLOCKS)
            live[place] = blocks
            if rng.random() < 1 / (2 * TURNS) or len(live) > MAX_LIVE:
                live.pop(place)
        else:
            tenant = rng.choices(range(tenants), weights)[0]
            blocks = system_prompts[tenant] + fresh(*FIRST_BLOCKS)
            live.append(blocks)
        prompt_tokens = len(blocks) * block_size - rng.randint(0, block_size - 1)
        output_tokens = rng.randint(*OUTPUT_TOKENS)
        number = f"made request {len(made) + 1}"
        made.append(Request(now_s, prompt_tokens, output_tokens, blocks, number))
    return Workload(f"{tenants} tenants", block_size, made)
