"""What `precision="high"` brings and costs: distance to exact log-probabilities, time beside standard.

    python benchmarks/precision.py --threads 2 smollm2 gemma3-270m

Both precisions take turns in one process; on a machine that others use the best round says most. Distances
are to the exact log-probabilities in tests/data/golden; a model that has none there is only timed. The
distance of llama.cpp is the one stored there. `--out FILE` gets all distances and samples. `--only lead`
prints how far the best first token of an answer is ahead of the next, in either precision and exactly.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

import stretto
from stretto.hardware import cpu_name

GOLDEN = Path(__file__).parent.parent / "tests" / "data" / "golden"
STORED = {"smollm2": "smollm2-135m-instruct-q4_1.json", "gemma3-270m": "gemma-3-270m-q4_k_m.json"}
PRECISIONS = "standard", "high"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT, TOKENS, SEQUENCES, STEPS = 512, 48, 16, 12


def distance(model, precision, kv):
    """The mean and the greatest distance of a token's log-probability from the exact one."""
    golden = json.loads((GOLDEN / STORED[model]).read_text())
    with stretto.load(model, cells=192, kv=kv, precision=precision) as llm:
        texts = golden["score"].values()
        far = np.concatenate([np.abs(llm.score(text["ids"]) - text["logprobs"]) for text in texts])
    return far.mean(), far.max()


def print_lead(model):
    """Print the two best first tokens of an answer, and the difference of their logits, by precision."""
    for options in ({"precision": "standard"}, {"precision": "high"}, {"backend": "reference"}):
        with stretto.load(model, cells=192, **options) as llm, llm.sequence(llm.chat_prompt(QUESTION)) as seq:
            best, second = np.argsort(seq.logits)[:-3:-1].tolist()
            pair = [llm.tokenizer.decode([token]) for token in (best, second)]
            lead = float(seq.logits[best] - seq.logits[second])
            print(f"{model:12} {llm.precision:9} {pair[0]!r} leads {pair[1]!r} by {lead:.2f}", flush=True)


def decode(llm, rng):
    llm.generate(ids(rng, 1), max_tokens=TOKENS, temperature=0, ignore_eos=True, loop="fused")
    return TOKENS


def prefill(llm, rng):
    llm.generate(ids(rng, PROMPT), max_tokens=1, temperature=0, ignore_eos=True)
    return PROMPT


def together(llm, rng):
    with llm.sequence(ids(rng, 1)) as first:
        sequences = [first.fork(seed=i) for i in range(SEQUENCES)]
        for _ in range(STEPS):
            llm.step(sequences, temperature=1.0)
        for sequence in sequences:
            sequence.close()
    return SEQUENCES * STEPS


def ids(rng, n):
    return rng.integers(1000, 9000, n).tolist()


def speed(model, threads, rounds):
    """Tokens a second by test and precision: a sample for each round."""
    opened = {
        precision: stretto.load(model, cells=1024, threads=threads, precision=precision, prefix_cache=False)
        for precision in PRECISIONS
    }
    rng, samples = np.random.default_rng(0), {}
    for test in (decode, prefill, together):
        for number in range(rounds + 1):  # the first one warms up
            for precision, llm in opened.items():
                begun = time.perf_counter()
                rate = test(llm, rng) / (time.perf_counter() - begun)
                if number:
                    samples.setdefault((test.__name__, precision), []).append(rate)
    for llm in opened.values():
        llm.close()
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(STORED))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=["distance", "speed", "lead"])
    parser.add_argument("--out", type=Path, help="a JSON file of distances and samples")
    options = parser.parse_args()
    found = {"cpu": cpu_name(), "threads": options.threads, "distances": [], "llama.cpp": {}, "speeds": []}
    if options.only == "lead":
        for model in options.models:
            print_lead(model)
        return
    for model in options.models:
        if options.only != "speed" and model in STORED:
            overall = json.loads((GOLDEN / STORED[model]).read_text())["overall"]
            found["llama.cpp"][model] = overall["llamacpp_mean_abs_difference"]
            for kv in ("f16", "q8", "f32"):
                for precision in PRECISIONS:
                    mean, most = map(float, distance(model, precision, kv))
                    one = {"model": model, "kv": kv, "precision": precision, "mean": mean, "most": most}
                    found["distances"].append(one)
                    print(
                        f"{model:12} K/V {kv:4} {precision:9} mean {mean:.4f}, at most {most:.3f}", flush=True
                    )
        if options.only != "distance":
            samples = speed(model, options.threads, options.rounds)
            for (test, precision), rates in samples.items():
                found["speeds"].append({"model": model, "test": test, "precision": precision, "rates": rates})
            for test in (decode, prefill, together):
                standard, high = (samples[test.__name__, precision] for precision in PRECISIONS)
                best = max(standard), max(high)
                cost = statistics.median(a / b for a, b in zip(standard, high, strict=True))
                print(
                    f"{model:12} {test.__name__:9} best {best[0]:.1f} and {best[1]:.1f} tok/s: "
                    f"time × {best[0] / best[1]:.2f}, median of rounds × {cost:.2f}",
                    flush=True,
                )
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
