"""The Python loops against the fused one, in short slices by turns: a drifting machine is fair to all.

    python benchmarks/loops.py

`stretto bench loops` shows where a step's time goes; this compares speeds alone. A slice is 64 tokens of
SmolLM2; the three ways take turns, and which goes first rotates. A share is the median of those of all turns,
each of which compares slices that ran one after the other; the median lies in the interval behind it with a
probability of 95 %.
"""

import argparse
import time
from math import sqrt
from statistics import median

import stretto


def stream(llm, loop, tokens, temperature):
    begun = time.perf_counter()
    for _ in llm.stream([0], max_tokens=tokens, temperature=temperature, ignore_eos=True, seed=0, loop=loop):
        pass
    return time.perf_counter() - begun


def step(llm, tokens, temperature):
    begun = time.perf_counter()
    with llm.sequence([0], seed=0) as sequence:
        for _ in range(tokens):
            done = sequence.step(temperature=temperature)
            if done.is_end:
                sequence.append(done.token)
    return time.perf_counter() - begun


def share(fused, other):
    """The other's share of the fused loop's speed."""
    ratios = sorted(a / b for a, b in zip(fused, other, strict=True))
    n = len(ratios)
    reach = round(0.98 * sqrt(n))  # of ranks around the median
    low, high = ratios[max(0, n // 2 - reach)], ratios[min(n - 1, n // 2 + reach)]
    return f"{median(ratios):.1%} ({100 * low:.1f} to {100 * high:.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slices", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print("| sampling | fused tok/s | `llm.stream` | `seq.step()` |\n|---|---|---|---|")
    with stretto.load("smollm2", threads=args.threads) as llm:
        for name, temperature in {"greedy": 0.0, "default": 0.8}.items():
            ways = {
                "fused": lambda t=temperature: stream(llm, "fused", args.tokens, t),
                "stream": lambda t=temperature: stream(llm, "python", args.tokens, t),
                "step": lambda t=temperature: step(llm, args.tokens, t),
            }
            seconds = {way: [run()][:0] for way, run in ways.items()}  # runs once to warm up
            order = list(ways)
            for number in range(args.slices):
                first = number % len(order)
                for way in order[first:] + order[:first]:
                    seconds[way].append(ways[way]())
            shares = " | ".join(share(seconds["fused"], seconds[way]) for way in ("stream", "step"))
            print(f"| {name} | {args.tokens / median(seconds['fused']):.0f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
