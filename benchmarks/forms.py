"""What each form of a step gains over the plain one, in short slices by turns.

    python benchmarks/forms.py --threads 2

A case runs with the forms that the backend has and with `PlainPass` alone (`engine/steps.py`); which of the
two goes first alternates, so that a drifting machine is fair to both. A gain is the median of those of all
turns, each of which compares two slices that ran one after the other; the median lies in the interval behind
it with a probability of 95 %.
"""

import argparse
import time
from math import sqrt
from statistics import median

import stretto

CASES = {  # name: texts, tokens of each, options
    "one text, greedy": (1, 64, {"temperature": 0}),
    "one text, default sampler": (1, 64, {"seed": 1}),
    "16 texts, greedy": (16, 24, {"temperature": 0}),
    "16 texts, default sampler": (16, 24, {"seed": 1}),
    "16 texts, the whole vocabulary": (16, 24, {"seed": 1, "top_k": 0, "top_p": 1.0, "min_p": 0.0}),
}


def seconds(llm, forms, prompts, n_tokens, options):
    llm.engine.forms = forms
    begun = time.perf_counter()
    llm.generate(prompts, max_tokens=n_tokens, ignore_eos=True, **options)
    return time.perf_counter() - begun


def gain(plain, fast):
    """How much faster, in percent."""
    gains = sorted(100 * (a / b - 1) for a, b in zip(plain, fast, strict=True))
    n = len(gains)
    reach = round(0.98 * sqrt(n))  # of ranks around the median
    low, high = gains[max(0, n // 2 - reach)], gains[min(n - 1, n // 2 + reach)]
    return f"{median(gains):+.1f} % ({low:+.1f} to {high:+.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--slices", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="+", default=list(CASES), help="cases, by their names")
    args = parser.parse_args()
    print("| case | plain tok/s | tok/s | gain |\n|---|---|---|---|")
    with stretto.load(args.model, threads=args.threads, device=args.device, cells=8192) as llm:
        fast = llm.engine.forms
        for name in args.only:
            n, n_tokens, options = CASES[name]
            prompts = [[1 + i, *range(100, 132)] for i in range(n)]
            found = {fast: [], fast[-1:]: []}
            for forms in found:
                seconds(llm, forms, prompts, n_tokens, options)  # to warm up
            for number in range(args.slices):
                for forms in list(found)[:: 1 if number % 2 else -1]:
                    found[forms].append(seconds(llm, forms, prompts, n_tokens, options))
            ours, plain = found.values()
            speeds = [f"{n * n_tokens / median(each):.0f}" for each in (plain, ours)]
            print(f"| {name} | {' | '.join(speeds)} | {gain(plain, ours)} |", flush=True)


if __name__ == "__main__":
    main()
