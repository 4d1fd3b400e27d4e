"""A server at its limit, with clients that vanish: nothing may grow, and no slot may stay taken."""

import asyncio
import random
import time

from load.client import get, stream
from load.process import resident

GROWTH = 1.10  # of memory, from the end of the first fifth to the end
LEAVES, SLOW, WRONG = 0.4, 0.05, 0.1  # shares of the clients


async def soak(address, pid, model, clients, seconds, tokens, seed=0):
    """Run it, and return what was found wrong and some figures."""
    chance = random.Random(seed)
    await warm(address, model, clients, tokens)
    deadline = time.monotonic() + seconds
    counts = {"whole": 0, "left": 0, "refused": 0, "wrong": 0, "errors": []}
    memory = []

    async def client(number):
        while time.monotonic() < deadline:
            kind = chance.random()
            body = {
                "model": model,
                "messages": [
                    {"role": "user", "content": f"{chance.randrange(50)} " * chance.randrange(1, 120)}
                ],
                "max_tokens": chance.randrange(1, tokens),
                "stream": True,
                "ignore_eos": True,
                "n": chance.choice((1, 1, 1, 2)),
            }
            if kind < WRONG:
                body["temperature"] = "warm"
            leave = chance.randrange(1, tokens) if WRONG <= kind < WRONG + LEAVES else None
            pause = 0.05 if kind > 1 - SLOW else 0.0
            heard = await stream(address, "/v1/chat/completions", body, leave, pause)
            if kind < WRONG:
                counts["wrong"] += 1
                if heard.status != 400:
                    counts["errors"].append(f"a wrong request got {heard.status}: {heard.error}")
            elif heard.status == 429:
                counts["refused"] += 1
                await asyncio.sleep(0.2)
            elif heard.error:
                counts["errors"].append(heard.error)
            else:
                counts["left" if leave is not None else "whole"] += 1

    async def watch():
        while time.monotonic() < deadline:
            memory.append((time.monotonic(), resident(pid)))
            await asyncio.sleep(min(1.0, seconds / 20))

    await asyncio.gather(watch(), *(client(number) for number in range(clients)))
    return await judged(address, model, counts, memory)


async def warm(address, model, clients, tokens):
    """Load the model and use all of its cells once: what comes after may not grow any more."""
    body = {"model": model, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    some = [body | {"messages": [{"role": "user", "content": f"{i} word " * 60}]} for i in range(clients)]
    await asyncio.gather(*(stream(address, "/v1/chat/completions", one) for one in some))


async def judged(address, model, counts, memory):
    """What must hold when everybody has gone."""
    wrong = list(dict.fromkeys(counts.pop("errors")))[:10]
    for _ in range(100):
        stats = await get(address, "/stretto/stats")
        engine = stats["models"][model]
        if stats["generations"] == 0 and engine["users"] == 0 and engine["cache"]["held"] == 0:
            break
        await asyncio.sleep(0.1)
    else:
        wrong.append(f"slots are stuck: {stats['generations']} generations, {engine['users']} users, "
                     f"{engine['cache']['held']} cells held")  # fmt: skip
    metrics = engine["engine"]
    ended = sum(metrics["finished"].values()) + metrics["failed"]
    if metrics["added"] != ended:
        wrong.append(f"{metrics['added']} requests were added and {ended} ended")
    early = max(size for _, size in memory[: max(1, len(memory) // 5)])
    late = max(size for _, size in memory[-max(1, len(memory) // 5) :])
    if late > GROWTH * early:
        wrong.append(f"memory grew from {early / 1e6:,.0f} MB to {late / 1e6:,.0f} MB")
    figures = {**counts, "tokens": metrics["decoded_tokens"], "memory_early": early, "memory_late": late}
    return wrong, figures
