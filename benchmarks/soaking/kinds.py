"""Everything a user does with a model, one function each: from threads, and from an event loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soaking.draw import N_PROBES, Draw
from soaking.plan import Mine

Compare = Callable[[int, Any], None]  # the number of a probe, and what it gave


def thread_kinds(draw: Draw, compare: Compare) -> dict[str, Callable[[random.Random], object]]:
    """Calls for threads; all threads share what is returned."""
    llm = draw.llm
    streams: list[Any] = []  # that another thread may cancel

    def one(rng: random.Random) -> object:
        return llm.generate(draw.prompt(rng), **draw.options(rng))

    def several(rng: random.Random) -> object:
        return llm.generate([draw.prompt(rng) for _ in range(rng.randint(1, 6))], **draw.options(rng))

    def branches(rng: random.Random) -> object:
        how = rng.choice(({"n": 3}, {"best_of": 3}, {"n": 2, "best_of": 4}))
        return llm.generate(draw.prompt(rng), **(draw.options(rng) | how))

    def beams(rng: random.Random) -> object:
        timeout = rng.choice((None, 0.05))
        return llm.generate(draw.prompt(rng), beams=rng.randint(1, 4), max_tokens=10, timeout=timeout)

    def probe(rng: random.Random) -> object:
        index = rng.randrange(N_PROBES)
        prompt, options = draw.probes[index]
        compare(index, llm.generate(prompt, **options))
        return None

    def hooks(rng: random.Random) -> object:
        at = rng.randint(0, 10)

        def hook(logits: NDArray[np.float32], tokens: list[int]) -> None:
            logits[5] += 1.0
            if len(tokens) % 11 == at:
                raise Mine

        return llm.generate(draw.prompt(rng), **(draw.options(rng) | {"hooks": [draw.shared, hook]}))

    def callback(rng: random.Random) -> object:
        left = rng.randint(0, 8)
        way = rng.choice(("no more", "raise", "compute"))

        def after(token: object) -> bool:
            nonlocal left
            left -= 1
            if left < 0 and way == "raise":
                raise Mine
            if left < 0 and way == "compute":
                with llm.sequence(draw.prompt(rng)) as inner:
                    inner.step()
            return left >= 0

        return llm.generate(draw.prompt(rng), **(draw.options(rng) | {"callback": after}))

    def stream(rng: random.Random) -> object:
        stream = llm.stream(draw.prompt(rng), **draw.options(rng))
        streams.append(stream)
        try:
            return sum(1 for _ in stream)
        finally:
            streams.remove(stream)

    def leave(rng: random.Random) -> object:
        with llm.stream(draw.prompt(rng), **draw.options(rng)) as stream:
            return next(stream, None)

    def forget(rng: random.Random) -> object:
        stream = llm.stream(draw.prompt(rng), **draw.options(rng))
        return next(stream, None) if rng.random() < 0.5 else None

    def cancel(rng: random.Random) -> object:
        live = list(streams)
        if live:
            rng.choice(live).cancel()
        time.sleep(0.01)
        return None

    def sequence(rng: random.Random) -> object:
        with llm.sequence(draw.prompt(rng)[:20], seed=1) as sequence:
            for _ in range(5):
                sequence.step()
            with sequence.fork() as fork:
                return fork.step()

    kinds = [one, several, branches, beams, probe, hooks, callback, stream, leave, forget, cancel, sequence]
    return {kind.__name__: kind for kind in kinds}


def task_kinds(draw: Draw, compare: Compare, rng: random.Random) -> dict[str, Callable[[], Awaitable[None]]]:
    """Calls for a task of an event loop."""
    llm = draw.llm

    async def generate() -> None:
        await llm.agenerate(draw.prompt(rng), **draw.options(rng))

    async def several() -> None:
        await llm.agenerate([draw.prompt(rng) for _ in range(3)], n=2, **draw.options(rng))

    async def stream() -> None:
        async for _ in llm.astream(draw.prompt(rng), **draw.options(rng)):
            pass

    async def leave() -> None:
        async for _ in llm.astream(draw.prompt(rng), **draw.options(rng)):
            if rng.random() < 0.3:
                break

    async def in_time() -> None:
        await asyncio.wait_for(llm.agenerate(draw.prompt(rng), **draw.options(rng)), rng.choice((0.01, 0.1)))

    async def cancelled() -> None:
        task = asyncio.create_task(generate() if rng.random() < 0.5 else stream())
        await asyncio.sleep(rng.choice((0.0, 0.001, 0.05)))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def probe() -> None:
        index = rng.randrange(N_PROBES)
        prompt, options = draw.probes[index]
        compare(index, await llm.agenerate(prompt, **options))

    kinds = [generate, several, stream, leave, in_time, cancelled, probe]
    return {f"async {kind.__name__}": kind for kind in kinds}
