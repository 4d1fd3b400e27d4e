"""Continuations packed into one pass against n forks: `llm.score(seq, continuations)` and what it replaces.

    python benchmarks/packed.py --rounds 5 --threads 2

Ways to score n continuations of m tokens behind one text:

- packed: one pass over all of them, those that begin alike sharing their first tokens
- together: n forks that step side by side, one pass of n rows for each token
- one by one: a pass for each continuation

All three give the same bits, which is asserted. Continuations that share half of their tokens are measured
too. Rounds take turns; the figures are medians of the ratios within a round.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import numpy as np

import stretto
from stretto.sampling.transforms import log_probabilities

HERE = Path(__file__).parent
TEXT = "The committee met on Tuesday and discussed the budget for the next three years. " * 40


def packed(llm, seq, several):
    return [scores.tolist() for scores in llm.score(seq, several)]


def one_by_one(llm, seq, several):
    return [llm.score(seq, [one])[0].tolist() for one in several]


def together(llm, seq, several):
    forks = [seq.fork() for _ in several]
    found = [[log_probabilities(seq.logits, one[:1])[0]] for one in several]
    for at in range(1, len(several[0])):
        for fork, one in zip(forks, several, strict=True):
            fork.append(one[at - 1])
        for row, one, scores in zip(llm.logits(forks), several, found, strict=True):
            scores.append(log_probabilities(row, one[at : at + 1])[0])
    for fork in forks:
        fork.close(park=False)
    return [np.array(scores, np.float32).tolist() for scores in found]


WAYS = {"packed": packed, "together": together, "one by one": one_by_one}


def continuations(n, length, n_shared, rng):
    head = rng.integers(1000, 20000, n_shared).tolist()
    return [head + rng.integers(1000, 20000, length - n_shared).tolist() for _ in range(n)]


def measure(llm, args):
    rng, samples = np.random.default_rng(1), []
    tokens = llm.tokenizer.encode(TEXT)[: args.depth]
    with llm.sequence(tokens) as seq:
        seq.logits  # noqa: B018
        for number in range(args.rounds + 1):
            for n in args.candidates:
                for n_shared in (0, args.length // 2):
                    several = continuations(n, args.length, n_shared, rng)
                    seconds, found = {}, {}
                    for name in list(WAYS)[:: 1 if number % 2 else -1]:
                        begun = time.perf_counter()
                        found[name] = WAYS[name](llm, seq, several)
                        seconds[name] = time.perf_counter() - begun
                    assert found["packed"] == found["one by one"] == found["together"]
                    if number:
                        samples.append({"n": n, "n_shared": n_shared, "seconds": seconds})
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=256)
    parser.add_argument("--length", type=int, default=6)
    parser.add_argument("--candidates", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--out", type=Path, default=HERE / "raw" / "packed.json")
    args = parser.parse_args()
    with stretto.load(args.model, threads=args.threads, cells=4096) as llm:
        samples = measure(llm, args)
    command = (
        f"python benchmarks/packed.py --model {args.model} --rounds {args.rounds} --threads {args.threads}"
    )
    args.out.write_text(json.dumps({"command": command, "samples": samples}, indent=1) + "\n")
    print(f"`{command}`: {args.length} tokens each, behind {args.depth}\n")
    print("| candidates | tokens shared | packed | × forks together | × forks one by one |")
    print("|---|---|---|---|---|")
    for n, n_shared in dict.fromkeys((s["n"], s["n_shared"]) for s in samples):
        mine = [s["seconds"] for s in samples if (s["n"], s["n_shared"]) == (n, n_shared)]
        ratios = [median(s[name] / s["packed"] for s in mine) for name in ("together", "one by one")]
        print(
            f"| {n} | {n_shared} | {median(s['packed'] for s in mine) * 1000:.0f} ms "
            f"| **{ratios[0]:.2f} ×** | **{ratios[1]:.2f} ×** |"
        )


if __name__ == "__main__":
    main()
