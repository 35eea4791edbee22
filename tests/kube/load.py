"""Steady load from a pod: prints every second, as JSON, what became of all requests so far.

Runs where only the router's image is: it imports nothing but the client.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter

from proto.client import AsyncClient
from proto.credentials import IN_CLEAR, Credentials
from proto.errors import LBError, Unavailable

CLIENTS = int(os.environ["CLIENTS"])
TOPICS = ("rivers", "bridges", "tea", "bicycles", "omelettes", "lighthouses", "chess", "rain")
TIMEOUT_S = 120.0


def credentials() -> Credentials:
    """By the files in $TLS_FILES, as a Secret of Kubernetes names them."""
    files = os.environ.get("TLS_FILES")
    if files is None:
        return IN_CLEAR
    return Credentials(f"{files}/ca.crt", f"{files}/tls.crt", f"{files}/tls.key")


async def main() -> None:
    answered = 0
    failed: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    first_s: float | None = None
    replicas: Counter[str] = Counter()
    cached = prompt = 0

    async def ask(rng: random.Random) -> None:
        nonlocal answered, first_s, cached, prompt
        async with AsyncClient(os.environ["PREFIXLB_ROUTER"], credentials()) as client:
            while True:
                # A fifth begins like nothing before, and goes where least is to do.
                topic = rng.choice(TOPICS) if rng.random() < 0.8 else f"{rng.random()}"
                asked = [
                    {"role": "system", "content": f"You know everything about {topic}. " * 8},
                    {"role": "user", "content": f"Tell me {rng.randrange(50)} things."},
                ]
                begun = False
                answer = client.generate(asked, max_tokens=4, timeout_s=TIMEOUT_S)
                try:
                    async for _ in answer:
                        begun = True
                    result = answer.result
                except LBError as error:
                    # Nobody can go on with what a replica that is no more had begun.
                    ended = broken if begun and isinstance(error, Unavailable) else failed
                    ended[f"{type(error).__name__}: {error}"] += 1
                    await asyncio.sleep(0.2)
                    continue
                answered += 1
                first_s = first_s or time.time()
                cached += result.cached_tokens
                prompt += result.prompt_tokens
                if result.route:
                    replicas[result.route.replica] += 1
                await asyncio.sleep(rng.uniform(0, 0.2))

    async with asyncio.TaskGroup() as tasks:
        for number in range(CLIENTS):
            tasks.create_task(ask(random.Random(number)))
        while True:
            await asyncio.sleep(1.0)
            told = {"answered": answered, "first_s": first_s, "failed": failed, "broken": broken}
            told |= {"replicas": replicas, "cached": cached, "prompt": prompt}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
