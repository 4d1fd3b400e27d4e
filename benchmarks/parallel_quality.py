"""Whether parallel tokens help: ways of decoding, their compute counted, on texts and on exact tasks.

    python benchmarks/parallel_quality.py --out benchmarks/raw/parallel_quality.json --plots docs/parallel

Each model (SmolLM2, Gemma 3) continues the prompts. A text is judged by its cross-entropy (less is better):
nats a token under the model itself, computed again with the text alone, and nats a character under the other
model. Sums and copies have one right answer. Compute is the number of rows that the model computed behind the
prompt, for each token of the text. Seeds are fixed; intervals are 95 % of a bootstrap over prompts.
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path

import numpy as np

import stretto
from parallel import PROMPTS, bars, interval

MODELS = "smollm2", "gemma3-270m"
TOKENS = 24
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
SETS = {
    "isolated, 0.1": {"threshold": 0.1},
    "isolated, 0.05": {"threshold": 0.05},
    "visible, 0.1": {"threshold": 0.1, "mode": "visible"},
    "visible, 0.05": {"threshold": 0.05, "mode": "visible"},
    "isolated, 0.1, what follows the best": {"threshold": 0.1, "combine": "best"},
    "isolated, 0.1, pruned": {"threshold": 0.1, "prune": 0.8},
}


def generated(llm, prompt, seed, rows, **options):
    """A text by `generate`, and the rows it took."""
    options |= {} if "beams" in options else {"seed": seed}
    result = llm.generate(prompt, ignore_eos=True, **options)
    return result.tokens, rows * len(result.tokens)


def in_sets(llm, prompt, options, first=False, rescored=0, **more):
    """The best path of a parallel run; the first member of each set; or the best of k paths scored again."""
    run = llm.parallel(prompt, ignore_eos=True, **options, **more)
    rows = sum(step.width for step in run.steps)
    if first:
        return [step.best.id for step in run.steps], rows
    if rescored:
        paths = [path.tokens for path in run.paths(rescored)]
        return max(paths, key=lambda tokens: own_score(llm, prompt, tokens)), rows + len(paths) * len(
            paths[0]
        )
    return run.tokens, rows


def ways():
    """Each way of decoding by its name: a function of (llm, prompt, seed, options)."""
    found = {
        "greedy": lambda llm, p, s, **o: generated(llm, p, s, 1, temperature=0, **o),
        "sampling": lambda llm, p, s, **o: generated(llm, p, s, 1, **PLAIN, **o),
        "best of 2": lambda llm, p, s, **o: generated(llm, p, s, 2, best_of=2, **PLAIN, **o),
        "best of 4": lambda llm, p, s, **o: generated(llm, p, s, 4, best_of=4, **PLAIN, **o),
        "2 beams": lambda llm, p, s, **o: generated(llm, p, s, 2, beams=2, **o),
        "4 beams": lambda llm, p, s, **o: generated(llm, p, s, 4, beams=4, **o),
    }
    for name, options in SETS.items():
        found[name] = lambda llm, p, s, options=options, **o: in_sets(llm, p, options, **o)
    first = SETS["isolated, 0.1"]
    found["isolated, 0.1, first members"] = lambda llm, p, s, **o: in_sets(llm, p, first, first=True, **o)
    found["isolated, 0.1, 4 paths rescored"] = lambda llm, p, s, **o: in_sets(llm, p, first, rescored=4, **o)
    return found


def own_score(llm, prompt, tokens):
    """The log-probability of a continuation, computed alone."""
    return float(llm.score([*prompt, *tokens])[len(prompt) - 1 :].sum())


def texts(llm, judge, rng):
    """Continuations of the prompts, judged by the model itself and by another one."""
    table = {}
    for name, decode in ways().items():
        own, other, distinct, compute, example = [], [], [], [], ""
        for seed, opening in enumerate(PROMPTS):
            prompt = llm.tokenizer.encode(opening, special=True)
            tokens, rows = decode(llm, prompt, seed, max_tokens=TOKENS)
            text = llm.tokenizer.decode(tokens)
            own.append(-own_score(llm, prompt, tokens) / len(tokens))
            before = judge.tokenizer.encode(opening, special=True)
            whole = judge.tokenizer.encode(opening + text, special=True)
            scores = judge.score(whole)[len(before) - 1 :]
            other.append(-float(scores.sum()) / max(1, len(text)))
            pairs = list(pairwise(tokens))
            distinct.append(len(set(pairs)) / len(pairs))
            compute.append(rows / len(tokens))
            example = example or text
        table[name] = {
            "own": interval(own, rng), "other": interval(other, rng), "distinct": interval(distinct, rng),
            "rows": float(np.mean(compute)), "example": example,
        }  # fmt: skip
    return table


def sums(draw):
    """Additions of one digit, with examples before them."""
    numbers = [(int(a), int(b)) for a, b in draw.integers(1, 10, (60, 2))]
    shots = "".join(f"{a}+{b}={a + b}\n" for a, b in [(2, 3), (4, 1), (7, 2), (5, 5)])
    return [(f"{shots}{a}+{b}=", str(a + b)) for a, b in numbers]


def copies(draw):
    """Words to be written down again."""
    words = ["river", "stone", "apple", "window", "silver", "garden", "yellow", "candle", "paper"]
    lists = [[words[i] for i in draw.choice(len(words), 3, replace=False)] for _ in range(60)]
    shots = "".join(f"Copy: {one}\nCopied: {one}\n\n" for one in ("lamp table green", "cloud king spoon"))
    return [(f"{shots}Copy: {' '.join(one)}\nCopied:", " ".join(one)) for one in lists]


def tasks(llm, rng):
    """The share of right answers."""
    table = {}
    for name, decode in ways().items():
        table[name] = {}
        for task, questions in (("sums", sums), ("copies", copies)):
            right = []
            for seed, (question, answer) in enumerate(questions(np.random.default_rng(3))):
                prompt = llm.tokenizer.encode(question, special=True)
                tokens, _ = decode(llm, prompt, seed, max_tokens=10, stop="\n")
                said = llm.tokenizer.decode(tokens).partition("\n")[0].strip()
                right.append(said == answer)
            table[name][task] = interval(right, rng)
    return table


def shown(found):
    """Tables as in docs/explanation/parallel-tokens.md."""
    for model, parts in found.items():
        print(f"\n{model}\n\n| | rows a token | nats a token | other's nats a character | distinct pairs |"
              " sums | copies |\n|---|---|---|---|---|---|---|")  # fmt: skip
        for name, row in parts["texts"].items():
            task = parts["tasks"][name]
            spans = [f"{m:.3f} [{low:.3f}, {high:.3f}]" for m, low, high in (row["own"], row["other"])]
            cells = [f"{row['rows']:.2f}", *spans, f"{row['distinct'][0]:.2f}"]
            cells += [f"{task[which][0]:.0%}" for which in ("sums", "copies")]
            print(f"| {name} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    rng, found = np.random.default_rng(0), {}
    llms = {name: stretto.load(name, threads=args.threads, cells=4096) for name in MODELS}
    for name, llm in llms.items():
        judge = next(other for which, other in llms.items() if which != name)
        found[name] = {"texts": texts(llm, judge, rng), "tasks": tasks(llm, rng)}
        if args.plots:
            values = {way: row["own"] for way, row in found[name]["texts"].items()}
            title = f"{name}: cross-entropy of its texts"
            bars(args.plots / f"quality-{name}.svg", title, values, "nats a token")
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    shown(found)


if __name__ == "__main__":
    main()
