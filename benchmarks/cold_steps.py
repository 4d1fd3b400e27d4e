"""Microseconds between two forward passes, with other work in their place: what cold caches cost.

    python benchmarks/cold_steps.py --out benchmarks/raw/cold_steps-neoverse-n1.json

Greedy, one thread. The forward pass of SmolLM2 is replaced by nothing, by a sum over as many bytes as its
weights have, and by sums over a few bytes for about as long as the pass takes; then it is the pass itself. A
figure is the median time from the end of one pass to the start of the next, of several rounds by turns.
"""

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

import stretto

MANY = np.ones(98 << 17, np.float64)  # 98 MiB
FEW = np.ones(1024, np.float64)  # 8 KiB
SECONDS = 0.01


def sum_few():
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        FEW.sum()


WORK = {"nothing": lambda: None, "a sum over 98 MiB": MANY.sum, "sums over 8 KiB, for 10 ms": sum_few}
PASS = "the forward pass"


def by_stream(llm, n):
    for _ in llm.stream([0], max_tokens=n, temperature=0, ignore_eos=True, loop="python"):
        pass


def by_step(llm, n):
    with llm.sequence([0]) as seq:
        for _ in range(n):
            seq.step(temperature=0)


LOOPS = {"llm.stream": by_stream, "seq.step()": by_step}


def gaps(llm, loop, work, n):
    """Microseconds between passes, of n steps after a few to warm up."""
    backend = type(llm.backend)
    forward, times = backend.forward, []
    with llm.sequence([0]) as seq:
        row = seq.logits.copy()[None]

    def timed(self, batch):
        start = time.perf_counter()
        if work is None:
            found = forward(self, batch)
        else:
            work()
            found = row
        times.append((start, time.perf_counter()))
        return found

    backend.forward = timed
    try:
        loop(llm, n + 10)
    finally:
        backend.forward = forward
    return [1e6 * (later[0] - earlier[1]) for earlier, later in pairwise(times[9:])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {name: {loop: [] for loop in LOOPS} for name in [*WORK, PASS]}
    with stretto.load("smollm2", threads=1) as llm:
        for _ in range(args.rounds):
            for name, by_loop in found.items():
                for loop, samples in by_loop.items():
                    samples.append(median(gaps(llm, LOOPS[loop], WORK.get(name), args.tokens)))
    print("| in the place of the forward pass | `llm.stream` | `seq.step()` |\n|---|---|---|")
    for name, by_loop in found.items():
        print(f"| {name} | " + " | ".join(f"{median(by_loop[loop]):.0f} µs" for loop in LOOPS) + " |")
    if args.out:
        args.out.write_text(json.dumps({"microseconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
