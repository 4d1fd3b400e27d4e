"""What it costs to watch a server: a frame of the cells, and CPU time a token with a page open and without.

    python benchmarks/watching.py --frames                  # 65,536 cells: copying, encoding, the lock
    python benchmarks/watching.py --threads 2 --rounds 6    # 32 clients, with and without a watcher by turns

Copying is what holds the engine's lock; all else happens without it. A watcher here is a reader of events,
not a browser: what a browser takes is its own. Processor time outside `forward` is that of the threads that
serve, help and step, as in benchmarks/serve.py; all of it includes the model. The goal is below 2 % with one.
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from contextlib import asynccontextmanager

from load.client import connect, get
from load.process import ours
from peers.bench import Others
from serve import load, outside
from stretto import hardware
from stretto.server.http.errors import dumps
from stretto.server.own.cells import frame
from stretto.server.settings import ModelEntry
from stretto.testing import mock_llm

GOAL = 0.02  # of the processor time of a token
PROMPT = 512  # tokens that all sequences share


# -- frames --


def filled(n_cells, sequences):
    """A table that is nearly full: sequences that share a prompt and go on by themselves."""
    llm = mock_llm("x", cells=n_cells, context_length=n_cells)
    cells = llm.engine.cells
    cells.place([1] * PROMPT, range(PROMPT), [(0,)] * PROMPT)
    for sequence in range(1, sequences):
        cells.copy(0, sequence)
    for _ in range((n_cells - PROMPT) // sequences - 120):
        cells.append([7] * sequences, list(range(sequences)))
    return llm


def timed(work, *arguments):
    begun = time.thread_time()
    value = work(*arguments)
    return value, time.thread_time() - begun


def frames(n_cells, sequences, rounds=24):
    """Milliseconds of CPU time: of frames after four steps each, and of a snapshot."""
    llm, samples = filled(n_cells, sequences), {}
    for _ in range(rounds):
        for _ in range(4):
            llm.engine.cells.append([7] * sequences, list(range(sequences)))
        copied, held = timed(llm.cells.copied)
        text, made = timed(lambda copied=copied: dumps({"cells": frame("mock", copied, (), True)}))
        samples.setdefault("frame", []).append((held, made, len(text)))
    copied, held = timed(llm.cells.copied)
    text, made = timed(lambda: dumps(copied.as_data()))
    samples["snapshot"] = [(held, made, len(text))]
    same, held = timed(llm.cells.copied, copied)
    samples["unchanged"] = [(held, 0.0, 0)]
    assert same is copied
    print(f"{n_cells:,} cells, {sequences} sequences, {llm.cells.n_used:,} in use")
    for kind, found in samples.items():
        held, made, size = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"  {kind}: lock {1e3 * held:.3f} ms, then {1e3 * made:.2f} ms, {size / 1e3:.1f} kB")


# -- a server with and without a watcher --


@asynccontextmanager
async def watching(address, model, n):
    """So many readers of events; yields how many bytes they have got."""
    got = [0, 0]

    async def read():
        reader, writer = await connect(address)
        try:
            path = f"/stretto/live?model={model}&cells=1"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            while piece := await reader.read(1 << 16):
                got[0] += len(piece)
                got[1] += piece.count(b'data: {"cells"')
        finally:
            writer.close()

    tasks = [asyncio.create_task(read()) for _ in range(n)]
    if n:
        await asyncio.sleep(4.0)  # what a page gets when it opens is not counted
    try:
        yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(address, model, clients, requests, tokens, watchers):
    """CPU time a token, in µs: outside of forward passes, and in all."""
    async with watching(address, model, watchers) as got:
        before, n_before, started = await get(address, "/stretto/stats"), list(got), time.perf_counter()
        heard, seconds = await load(address, model, clients, requests, tokens)
        after = await get(address, "/stretto/stats")
        n_tokens = sum(one.tokens or len(one.times) for one in heard)
        spent = {
            part: sum(each.values())
            for part, each in zip(("outside", "inside"), outside(before, after, model, n_tokens), strict=True)
        }
        seen = time.perf_counter() - started
        return {
            "watchers": watchers,
            "tokens_per_second": n_tokens / seconds,
            "outside": spent["outside"],
            "all": spent["outside"] + spent["inside"],
            "frames_per_second": (got[1] - n_before[1]) / seen,
            "kB_per_second": (got[0] - n_before[0]) / seen / 1e3,
        }


async def rounds(address, model, given):
    await load(address, model, given.clients, 1, 8)  # warm
    results = []
    for number in range(given.rounds):
        for watchers in (0, given.watchers) if number % 2 == 0 else (given.watchers, 0):
            one = await measure(address, model, given.clients, given.requests, given.tokens, watchers)
            results.append(one)
            print(json.dumps({key: round(value, 1) for key, value in one.items()}), file=sys.stderr)
    return results


def serve(given):
    others, name = Others(), ModelEntry.parse(given.model).name
    options = ["--model", given.model, "--cells", str(given.cells)]
    options += ["--threads", str(given.threads)] if given.threads else []
    with ours(*options) as (address, _):
        results = asyncio.run(rounds(address, name, given))
    middle = {
        n: {key: statistics.median(one[key] for one in results if one["watchers"] == n) for key in results[0]}
        for n in (0, given.watchers)
    }
    print(
        f"{hardware.probe(measure=False).cpu}, {given.model}, {given.clients} clients, {given.cells:,} cells"
    )
    print("| watchers | tok/s | µs a token outside forward | in all | frames/s | kB/s |")
    print("|---" * 6 + "|")
    for n, one in middle.items():
        print(
            f"| {n} | {one['tokens_per_second']:.0f} | {one['outside']:.1f} | {one['all']:.0f} | "
            f"{one['frames_per_second']:.1f} | {one['kB_per_second']:.0f} |"
        )
    more = middle[given.watchers]["outside"] - middle[0]["outside"]
    share = more / middle[0]["all"]
    print(
        f"watching adds {more:.1f} µs a token, {share:.2%} (goal: below {GOAL:.0%}); "
        f"others used {others.share():.0%}"
    )
    return int(share >= GOAL)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--frames", action="store_true", help="only the cost of frames")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cells", type=int, default=65536)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--watchers", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2, help="of each client in a round")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    if given.frames:
        for n_cells, sequences in ((8192, 32), (65536, 64), (65536, 512)):
            frames(n_cells, sequences)
        return 0
    return serve(given)


if __name__ == "__main__":
    sys.exit(main())
