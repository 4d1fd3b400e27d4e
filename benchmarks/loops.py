"""The Python loops against the fused one, in short slices by turns: a drifting machine is fair to all.

    python benchmarks/loops.py

`stretto bench loops` shows where a step's time goes; this compares speeds alone. A slice is 64 tokens of
SmolLM2; the three ways take turns, and which goes first rotates. The shares are of the medians of all slices.
"""

import argparse
import time
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slices", type=int, default=70)
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
            fused = median(seconds["fused"])
            shares = [f"{fused / median(seconds[way]):.1%}" for way in ("stream", "step")]
            print(f"| {name} | {args.tokens / fused:.0f} | {shares[0]} | {shares[1]} |")


if __name__ == "__main__":
    main()
