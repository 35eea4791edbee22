"""Conversations like those of Mooncake's trace, where that is not at hand."""

import random

from router.cli.sim.workload import Request, Workload

REQUESTS = 12_000
BLOCK = 512
TICK_S, TICK_REQUESTS = 3.0, 10.2
NEW = 0.62
"""The part that begins a conversation."""

LONGEST = 125_000
LIVE = 3_000


def conversations(seed: int) -> Workload:
    """Arrivals in ticks of three seconds, one system prompt of a block, prompts and turns of
    log-normal lengths, minutes between two turns: fitted to that trace's quantiles.
    """
    rng = random.Random(seed)
    last = 0
    live: list[tuple[float, list[int], int]] = []
    made: list[Request] = []
    now_s = 0.0
    while len(made) < REQUESTS:
        for _ in range(round(rng.gauss(TICK_REQUESTS, 3.0))):
            ripe = [place for place, (ready_s, _, _) in enumerate(live) if ready_s <= now_s]
            if ripe and rng.random() > NEW:
                _, blocks, tokens = live.pop(ripe[-1 - int(len(ripe) * rng.random() ** 2)])
                blocks = blocks[: tokens // BLOCK]
                tokens += int(rng.lognormvariate(7.0, 1.7))
            else:
                blocks, tokens = [0], int(rng.lognormvariate(8.5, 1.26))
            tokens = min(max(tokens, 100), LONGEST)
            more = -(-tokens // BLOCK) - len(blocks)
            blocks = blocks + list(range(last + 1, last + 1 + more))
            last += max(more, 0)
            output = max(int(rng.gauss(343, 200)), 1)
            made.append(Request(now_s, tokens, output, blocks, f"made request {len(made) + 1}"))
            live.append((now_s + rng.lognormvariate(4.8, 0.9), blocks, tokens))
            if len(live) > LIVE:
                live.pop(0)
        now_s += TICK_S
    return Workload("made conversations", BLOCK, made)
