"""A long prompt arrives while a stream runs: how long the stream waits, and how long the prompt takes.

    python benchmarks/arrival.py --rounds 5 --threads 2

The stream decodes; then a request with a prompt of 4,000 tokens comes. Measured: the longest time between
two tokens of the stream while the prompt is computed, and the prompt's time to first token, also alone.
"""

import argparse
import json
import random
import statistics
import threading
import time
from itertools import pairwise
from pathlib import Path

import stretto
from stretto.weights import hub

HERE = Path(__file__).parent


def alone(llm, prompt):
    llm.cache.clear()
    begun = time.perf_counter()
    next(stream := llm.stream(prompt, max_tokens=2, temperature=0))
    seconds = time.perf_counter() - begun
    stream.cancel()
    return seconds


def beside(llm, prompt):
    """(longest gap of the stream, the prompt's time to first token), in seconds."""
    llm.cache.clear()
    times, go_on = [], True

    def read():
        for _ in llm.stream([5, 6, 7], ignore_eos=True, temperature=0):
            times.append(time.perf_counter())
            if not go_on:
                break

    reader = threading.Thread(target=read)
    reader.start()
    while len(times) < 20:
        time.sleep(0.01)
    begun = time.perf_counter()
    next(stream := llm.stream(prompt, max_tokens=2, temperature=0))
    ended = time.perf_counter()
    stream.cancel()
    go_on = False
    reader.join()
    during = [moment for moment in times if begun <= moment <= ended]
    edges = [begun, *during, ended]
    return max(b - a for a, b in pairwise(edges)), ended - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=HERE / "raw" / "arrival.json")
    args = parser.parse_args()
    rng = random.Random(0)
    found = {"gap": [], "first token": [], "alone": []}
    with stretto.load(hub.resolve("smollm2"), threads=args.threads, cells=16384) as llm:
        for number in range(args.rounds + 1):  # the first warms up
            prompt = rng.choices(range(100, 49_000), k=args.prompt)
            gap, first = beside(llm, prompt)
            seconds = alone(llm, prompt)
            if number:
                found["gap"].append(gap)
                found["first token"].append(first)
                found["alone"].append(seconds)
    command = f"python benchmarks/arrival.py --rounds {args.rounds} --threads {args.threads}"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"command": command, "seconds": found}, indent=1) + "\n")
    middle = {name: statistics.median(samples) for name, samples in found.items()}
    print(f"`{command}`\n\n| | |\n|---|---|")
    print(f"| longest gap between tokens of the stream | {1e3 * middle['gap']:.0f} ms |")
    print(f"| worst of all rounds | {1e3 * max(found['gap']):.0f} ms |")
    print(f"| first token of the prompt, beside the stream | {middle['first token']:.2f} s |")
    print(f"| alone | {middle['alone']:.2f} s |")
    print(f"| ratio | {middle['first token'] / middle['alone']:.2f} |")


if __name__ == "__main__":
    main()
