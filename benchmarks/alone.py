"""One model without a peer: prefill, decode, and 16 sequences together, with several numbers of threads.

    python benchmarks/shapes.py gpt-oss-20b gpt-oss.gguf --layers 24
    python benchmarks/alone.py gpt-oss.gguf --threads 16 8

Tokens are sampled, as greedy ones of a random model repeat, and with them the experts, whose weights would
stay in the processor's caches.
"""

import argparse
import time

import numpy as np

import stretto

SAMPLING = {"temperature": 1.0, "top_k": 40, "ignore_eos": True}


def seconds(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def prefill(llm, prompt):
    with llm.sequence(prompt) as seq:
        assert len(seq.logits) == llm.spec.n_vocab


def measure(path, threads, rounds):
    """Tokens a second of each round: prefill of 512, decode of 96, 16 sequences of 32 tokens each."""
    with stretto.load(path, threads=threads, cells=4096) as llm:
        print(f"{threads} threads, kernels {llm.backend.kernels}, {llm.backend.placement}", flush=True)
        prompt = np.random.default_rng(0).integers(0, llm.spec.n_vocab, 512).tolist()
        several = [prompt[i : i + 16] for i in range(16)]
        for i in range(rounds):
            turned = prompt[i:] + prompt[:i]
            rates = (
                512 / seconds(lambda turned=turned: prefill(llm, turned)),
                96 / seconds(lambda i=i: llm.generate(prompt[:8], max_tokens=96, seed=i, **SAMPLING)),
                512 / seconds(lambda i=i: llm.generate(several, max_tokens=32, seed=i, **SAMPLING)),
            )
            print("prefill {:.0f}, decode {:.1f}, 16 sequences {:.0f} tok/s".format(*rates), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for threads in args.threads:
        measure(args.model, threads, args.rounds)


if __name__ == "__main__":
    main()
