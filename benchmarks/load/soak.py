"""A server at its limit, with clients that vanish: nothing may grow, and no slot may stay taken."""

import asyncio
import random
import time
from collections import Counter

from load.client import Heard, get, stream
from load.process import open_files, resident

GROWTH = 1.10  # of memory, from the first fifth to the last
MORE_FILES = 16  # open in the end, beyond those at the start
LEAVES, SLOW, WRONG = 0.4, 0.05, 0.1  # shares of the clients
STUCK = 600.0  # seconds after which a request is one that will never end
HOPELESS = 1000  # errors after which there is nothing more to learn
LOOKS = 10  # at the server, however long they take on a busy machine


async def soak(address, pid, model, clients, seconds, tokens, seed=0):
    """Run it, and return what was found wrong and some figures."""
    chance = random.Random(seed)
    await warm(address, model, clients, tokens)
    files, deadline = open_files(pid), time.monotonic() + seconds
    counts = dict.fromkeys(("whole", "left", "refused", "wrong", "most_running"), 0)
    errors, memory = Counter(), []

    def goes_on():
        return (time.monotonic() < deadline or len(memory) < LOOKS) and errors.total() < HOPELESS

    async def client():
        while goes_on():
            kind, body = chance.random(), request(model, tokens, chance)
            if kind < WRONG:
                body["temperature"] = "warm"
            leave = chance.randrange(1, tokens) if WRONG <= kind < WRONG + LEAVES else None
            pause = 0.05 if kind > 1 - SLOW else 0.0
            heard = await patient(stream(address, "/v1/chat/completions", body, leave, pause))
            if kind < WRONG:
                counts["wrong"] += 1
                if heard.status != 400:
                    errors[f"a wrong request got {heard.status}: {heard.error}"] += 1
            elif heard.status == 429:
                counts["refused"] += 1
                await asyncio.sleep(0.2)
            elif heard.error:
                errors[heard.error] += 1
                await asyncio.sleep(0.2)
            else:
                counts["left" if leave is not None else "whole"] += 1

    async def watch():
        while goes_on():
            memory.append(resident(pid))
            engine = (await get(address, "/stretto/stats"))["models"][model]["engine"]
            counts["most_running"] = max(counts["most_running"], engine["running"])
            await asyncio.sleep(min(5.0, seconds / 20))

    await asyncio.gather(watch(), *(client() for _ in range(clients)))
    wrong = [f"{n} times: {text}" for text, n in errors.most_common(10)]
    found = await ended(address, model, wrong)
    judge_memory(memory, wrong)
    if (now := open_files(pid)) > files + MORE_FILES:
        wrong.append(f"{now} files are open, and {files} were at the start")
    fifth = max(1, len(memory) // 5)
    mb = [round(max(some) / 1e6) for some in (memory[:fifth], memory[-fifth:])]
    return wrong, {"seconds": seconds, **counts, **found, "memory_mb": mb, "files": [files, now]}


def request(model, tokens, chance):
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"{chance.randrange(50)} " * chance.randrange(1, 120)}],
        "max_tokens": chance.randrange(1, tokens),
        "stream": True,
        "ignore_eos": True,
        "n": chance.choice((1, 1, 1, 2)),
    }


async def patient(work):
    """What a request heard; one that never ends is an error."""
    try:
        return await asyncio.wait_for(work, STUCK)
    except asyncio.TimeoutError:
        return Heard(error=f"no end after {STUCK:.0f} s")


async def warm(address, model, clients, tokens):
    """Load the model and use all of its cells once: what comes after may not grow any more."""
    body = {"model": model, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    some = [body | {"messages": [{"role": "user", "content": f"{i} word " * 60}]} for i in range(clients)]
    await asyncio.gather(*(stream(address, "/v1/chat/completions", one) for one in some))


async def ended(address, model, wrong):
    """What must hold when everybody has gone: no request, no lease, no cell that is not free or parked."""
    for _ in range(100):
        stats = await get(address, "/stretto/stats")
        engine = stats["models"][model]
        held, metrics = engine["cache"]["held"], engine["engine"]
        gone = sum(metrics["finished"].values()) + metrics["failed"]
        # A request that was cancelled ends with the engine's next step.
        if stats["generations"] == engine["users"] == held == 0 and metrics["added"] == gone:
            break
        await asyncio.sleep(0.1)
    else:
        wrong.append(f"slots are stuck: {stats['generations']} generations, {engine['users']} users, "
                     f"{held} cells held, {metrics['added']} requests added, {gone} ended")  # fmt: skip
    last = await patient(stream(address, "/v1/chat/completions", request(model, 8, random.Random(1))))
    if last.error or last.status != 200:
        wrong.append(f"a last request got {last.status}: {last.error}")
    return {"tokens": metrics["decoded_tokens"], "ended": metrics["finished"], "held": held}


def judge_memory(memory, wrong):
    fifth = max(1, len(memory) // 5)
    early, late = max(memory[:fifth]), max(memory[-fifth:])
    if late > GROWTH * early:
        wrong.append(f"memory grew from {early / 1e6:,.0f} MB to {late / 1e6:,.0f} MB")
