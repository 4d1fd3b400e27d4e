"""A mixture of experts divided between GPU and CPU, beside the CPU alone and what the bandwidths allow.

    python benchmarks/shapes.py gpt-oss-20b /dev/shm/gpt-oss.gguf --layers 24
    python benchmarks/split.py /dev/shm/gpt-oss.gguf --threads 16
    python benchmarks/split.py /dev/shm/gpt-oss.gguf --threads 16 --experts auto --gpu-memory 12

Contestants take turns in one process each round: all experts on the CPU (or as --experts says), and with
--alone the CPU for everything. Tokens are sampled, as greedy ones of a random model repeat, and with them the
experts, whose weights would stay in the processor's caches. `bound` is what bytes and bandwidths allow one
sequence; llama.cpp's figures come from `llama-bench -ngl 99 -ncmoe 99 -fa 1 -p 2048 -n 32` on the same file.
"""

import argparse
import json
import statistics

import numpy as np

import stretto
from alone import SAMPLING, prefill, seconds


def measure(llm, turn, tokens, length):
    """Tokens a second of a prompt, of decoding behind it, and of eight sequences together."""
    rng = np.random.default_rng(turn)
    prompt = rng.integers(0, llm.spec.n_vocab, length).tolist()
    several = rng.integers(0, llm.spec.n_vocab, (8, 16)).tolist()
    options = {"max_tokens": tokens, "seed": turn, **SAMPLING}
    return {
        "prefill": length / seconds(lambda: prefill(llm, prompt)),
        "decode": tokens / seconds(lambda: llm.generate(prompt[:8], **options)),
        "8 sequences": 8 * tokens / seconds(lambda: llm.generate(several, **options)),
    }


def contestants(args):
    """Names and the options of `stretto.load`."""
    shared = {"threads": args.threads, "cells": args.cells}
    experts = int(args.experts) if args.experts.isdecimal() else args.experts
    room = None if args.gpu_memory is None else int(args.gpu_memory * 1e9)
    divided = {"backend": "torch", "device": args.device, "experts": experts, "gpu_memory": room}
    yield "GPU and CPU", {**shared, **divided}
    if args.alone:
        yield "CPU alone", {**shared, "backend": "native"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--experts", default="cpu", help="as `stretto run --experts`")
    parser.add_argument("--gpu-memory", type=float, help="GB")
    parser.add_argument("--cells", type=int, default=4096)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="the CPU alone, too")
    args = parser.parse_args()
    figures, plan = {}, None
    for name, options in contestants(args):  # one after the other: both at once may not fit
        with stretto.load(args.model, prefix_cache=False, **options) as llm:
            plan = llm.route.placement or plan
            measure(llm, 0, args.tokens, args.prompt)  # compiles, captures and packs
            rounds = [measure(llm, 1 + turn, args.tokens, args.prompt) for turn in range(args.rounds)]
        figures[name] = {part: statistics.median(each[part] for each in rounds) for part in rounds[0]}
    bound = plan.most_tokens_per_second
    print(plan)
    for name, found in figures.items():
        words = ", ".join(f"{part} {rate:,.1f}" for part, rate in found.items())
        print(f"{name}: {words} tok/s")
    if bound:
        print(f"GPU and CPU reach {figures['GPU and CPU']['decode'] / bound:.0%} of the bound of decode")
    print(json.dumps({"plan": plan.as_data(), "figures": figures}))


if __name__ == "__main__":
    main()
