"""What a hook costs, beside llama-cpp-python's `logits_processor`: with and without by turns, in one run.

    python benchmarks/hooks.py --peer PEER/bin/python --rounds 20 --threads 2

PEER is an environment with `llama-cpp-python`. Every sample with a hook stands next to one without, first
behind it, in the next round before it; the cost is what the two of a round differ by. A hook is empty, or
adds a NumPy array float32[n_vocab] to the logits; a native one does the same in C. The table goes to stdout,
all samples to --out. The machine has to be quiet; what others used of it stands under the table.
"""

import argparse
import sys
from pathlib import Path
from statistics import median

from peers.bench import Others, finish, note, raw_file
from peers.process import Process
from stretto import hardware
from stretto.weights import hub

HERE = Path(__file__).parent
# (whose, loop, hook, the most it should cost of a step)
CASES = [
    ("Stretto", "python", "empty", 0.02),
    ("Stretto", "python", "bias", 0.05),
    ("Stretto", "fused", "native empty", None),
    ("Stretto", "fused", "native bias", None),
    ("llama-cpp-python", "generate", "empty", None),
    ("llama-cpp-python", "generate", "bias", None),
]


def measure(args, processes, model):
    """A sample with and one without for each round and case; the first round warms up."""
    samples = []
    for number in range(args.rounds + 1):
        for whose, loop, hook, _ in CASES:
            note(f"round {number} of {args.rounds}: {whose}, {hook}")
            process, idle = processes[whose], next(p for name, p in processes.items() if name != whose)
            seconds, resting = {}, 0.0
            for kind in ("none", hook) if number % 2 else (hook, "none"):
                job = {"do": "decode", "model": model, "threads": args.threads, "tokens": args.tokens}
                answer = process.ask({**job, "seed": number, "hook": kind, "loop": loop}, idle=idle)
                seconds[kind] = answer["seconds"]
                resting = max(resting, answer["idle_cpu"])
            if number:
                key = {"whose": whose, "loop": loop, "hook": hook, "round": number}
                samples.append(
                    {**key, "without": seconds["none"], "with": seconds[hook], "idle_cpu": resting}
                )
    for process in processes.values():
        process.ask({"do": "close"})
    return samples


def rows(document):
    """For each case: milliseconds a step without, microseconds that the hook adds, its share of a step."""
    n = document["tokens"]
    for whose, loop, hook, bar in CASES:
        found = [s for s in document["samples"] if (s["whose"], s["loop"], s["hook"]) == (whose, loop, hook)]
        yield {
            "cells": (whose, loop, hook),
            "step": median(1e3 * s["without"] / n for s in found),
            "added": median(1e6 * (s["with"] - s["without"]) / n for s in found),
            "shares": sorted(s["with"] / s["without"] - 1 for s in found),
            "bar": bar,
        }


def markdown(document):
    yield f"{document['cpu']}, {document['threads']} threads; {document['ours']}; {document['peer']};"
    yield f"SmolLM2 135M Q4_1, {document['tokens']} tokens a sample."
    yield f"`{document['command']}`"
    yield ""
    yield "| | loop | hook | a step without | the hook adds | share | middle half of the rounds | bar |"
    yield "|---|---|---|---|---|---|---|---|"
    added = {}
    for row in rows(document):
        shares = row["shares"]
        added[row["cells"][0], row["cells"][2]] = row["added"]
        half = f"{shares[len(shares) // 4]:+.1%} to {shares[-1 - len(shares) // 4]:+.1%}"
        share = median(shares)
        bar = "" if row["bar"] is None else f"{row['bar']:.0%}: {'met' if share < row['bar'] else 'missed'}"
        figures = f"{row['step']:.2f} ms | {row['added']:+.0f} µs | **{share:+.1%}** | {half} | {bar}"
        yield f"| {' | '.join(row['cells'])} | {figures} |"
    yield ""
    for hook in ("empty", "bias"):
        ours, theirs = added["Stretto", hook], added["llama-cpp-python", hook]
        tellable = ours > 0 and theirs > 0  # where noise is greater than the cost, a ratio says nothing
        ratio = f"{theirs / ours:.1f} times" if tellable else "too noisy to compare with"
        yield f"What the peer's {hook} hook adds to a step is {ratio} what ours adds."
    idle = max(1e3 * sample["idle_cpu"] for sample in document["samples"])
    yield f"Medians of {document['rounds']} rounds. While one process measured, the other used at most"
    yield f"{idle:.0f} ms of processor time; everything else on the machine used {document['others']:.0%}"
    yield "of the processors."


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", required=True, help="the Python that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=hardware.usable_cores())
    parser.add_argument("--tokens", type=int, default=64, help="decoded in a sample")
    parser.add_argument("--out", type=Path, help="where all samples go (default: raw/, by processor)")
    return parser.parse_args()


def main():
    args = arguments()
    cpu = hardware.probe(measure=False).cpu
    out = args.out or raw_file("hooks", cpu)
    sizes = {name: getattr(args, name) for name in ("rounds", "threads", "tokens")}
    options = " ".join(f"--{name} {value}" for name, value in sizes.items())
    others = Others()
    with (
        Process([sys.executable, str(HERE / "peers" / "stretto_hooks.py")]) as ours,
        Process([args.peer, str(HERE / "peers" / "llamacpp_hooks.py")]) as peer,
    ):
        document = {
            "command": f"python benchmarks/hooks.py --peer PEER/bin/python {options}",
            "cpu": cpu,
            "ours": ours.ask({"do": "about"})["version"],
            "peer": peer.ask({"do": "about"})["version"],
            **sizes,
        }
        processes = {"Stretto": ours, "llama-cpp-python": peer}
        document["samples"] = measure(args, processes, str(hub.resolve("smollm2")))
    finish(document, others, out, markdown)


if __name__ == "__main__":
    main()
