"""Whether parallel tokens help: ways of decoding, their compute counted, on texts and on exact tasks.

    python benchmarks/parallel_quality.py --out benchmarks/raw/parallel_quality.json

Each model (SmolLM2, Gemma 3) continues the prompts. A text is judged by its cross-entropy (less is better):
nats a token under the model itself, computed again with the text alone, and nats a character under the other
model. Sums, copies and multiple choice (benchmarks/data/choices.jsonl) have one right answer, which must be
the whole line that is generated; for comparison, the choices are also scored as packed continuations. Compute
is the number of rows that the model computed behind the prompt, for each token of the text. Seeds are fixed;
intervals are 95 % of a bootstrap over prompts.

`--ways` and `--parts` measure some again and keep the rest of the file; it is written after each way. A model
that takes longer gets fewer prompts: `--models qwen2.5-coder-1.5b --first 8`, and a file of its own. Then
`python scripts/doc_figures.py` and `python scripts/doc_pictures.py` fill the tables and draw the plots.
"""

import argparse
import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

import stretto
from parallel import PROMPTS, interval
from stretto.evaluation.choices import Question, read_questions, score_choices

MODELS = "smollm2", "gemma3-270m"
JUDGES = {"smollm2": "gemma3-270m", "gemma3-270m": "smollm2", "qwen2.5-coder-1.5b": "gemma3-270m"}
TOKENS = 24
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
SETS = {
    "isolated, 0.25": {"threshold": 0.25},
    "isolated, 0.2": {"threshold": 0.2},
    "isolated, 0.15": {"threshold": 0.15},
    "isolated, 0.1": {"threshold": 0.1},
    "isolated, 0.05": {"threshold": 0.05},
    "visible, 0.15": {"threshold": 0.15, "mode": "visible"},
    "visible, 0.1": {"threshold": 0.1, "mode": "visible"},
    "visible, 0.05": {"threshold": 0.05, "mode": "visible"},
    "isolated, 0.1, what follows the best": {"threshold": 0.1, "combine": "best"},
    "isolated, 0.1, pruned": {"threshold": 0.1, "prune": 0.8},
}
PACKED = "packed continuations"
CHOICES = Path(__file__).parent / "data" / "choices.jsonl"


def generated(llm, prompts, rows, **options):
    """Texts by `generate`: tokens, rows, and the share of steps with several tokens, which is 0, for each."""
    found = []
    for seed, prompt in enumerate(prompts):
        seeded = {} if "beams" in options else {"seed": seed}
        tokens = llm.generate(prompt, ignore_eos=True, **options, **seeded).tokens
        found.append((tokens, rows * len(tokens), 0.0))
    return found


def in_sets(llm, prompts, options, first=False, rescored=0, **more):
    """The best path of each parallel run; its first members; or the best of k paths scored again."""
    found = []
    for prompt, run in zip(prompts, llm.parallel(prompts, ignore_eos=True, **options, **more), strict=True):
        rows, tokens = sum(step.width for step in run.steps), run.tokens
        if first:
            tokens = [step.best.id for step in run.steps]
        if rescored:
            paths = [path.tokens for path in run.paths(rescored)]
            scores = [own_score(llm, prompt, path) for path in paths]
            tokens = paths[int(np.argmax(scores))]
            rows += len(paths) * len(tokens)
        found.append((tokens, rows, run.parallel_share))
    return found


def ways():
    """Each way of decoding by its name: a function of (llm, prompts, options)."""
    found = {
        "greedy": partial(generated, rows=1, temperature=0),
        "sampling": partial(generated, rows=1, **PLAIN),
        "best of 2": partial(generated, rows=2, best_of=2, **PLAIN),
        "best of 4": partial(generated, rows=4, best_of=4, **PLAIN),
        "2 beams": partial(generated, rows=2, beams=2),
        "4 beams": partial(generated, rows=4, beams=4),
        **{name: partial(in_sets, options=options) for name, options in SETS.items()},
    }
    tenth = SETS["isolated, 0.1"]
    found["isolated, 0.1, first members"] = partial(in_sets, options=tenth, first=True)
    found["isolated, 0.1, 4 paths rescored"] = partial(in_sets, options=tenth, rescored=4)
    return found


def own_score(llm, prompt, tokens):
    """The log-probability of a continuation, computed alone."""
    return float(llm.score([*prompt, *tokens])[len(prompt) - 1 :].sum())


def texts(llm, judge, decode, first):
    """Continuations of the prompts, judged by the model itself and by another one."""
    own, other, distinct, wider, compute, examples = [], [], [], [], [], []
    openings = PROMPTS[:first]
    prompts = [llm.tokenizer.encode(opening, special=True) for opening in openings]
    decoded = decode(llm, prompts, max_tokens=TOKENS)
    for opening, prompt, (tokens, rows, share) in zip(openings, prompts, decoded, strict=True):
        text = llm.tokenizer.decode(tokens)
        own.append(-own_score(llm, prompt, tokens) / len(tokens))
        before = judge.tokenizer.encode(opening, special=True)
        whole = judge.tokenizer.encode(opening + text, special=True)
        scores = judge.score(whole)[len(before) - 1 :]
        other.append(-float(scores.sum()) / max(1, len(text)))
        pairs = list(pairwise(tokens))
        distinct.append(len(set(pairs)) / len(pairs))
        wider.append(share)
        compute.append(rows / len(tokens))
        examples.append(text)
    return {
        "own": bootstrap(own), "other": bootstrap(other), "distinct": bootstrap(distinct),
        "wider": float(np.mean(wider)), "rows": float(np.mean(compute)), "example": examples[0],
    }  # fmt: skip


def sums():
    """Additions of one digit, with examples before them."""
    draw = np.random.default_rng(3)
    numbers = [(int(a), int(b)) for a, b in draw.integers(1, 10, (60, 2))]
    shots = "".join(f"{a}+{b}={a + b}\n" for a, b in [(2, 3), (4, 1), (7, 2), (5, 5)])
    return [(f"{shots}{a}+{b}=", str(a + b)) for a, b in numbers]


def copies():
    """Words to be written down again."""
    draw = np.random.default_rng(3)
    words = ["river", "stone", "apple", "window", "silver", "garden", "yellow", "candle", "paper"]
    lists = [[words[i] for i in draw.choice(len(words), 3, replace=False)] for _ in range(60)]
    shots = "".join(f"Copy: {one}\nCopied: {one}\n\n" for one in ("lamp table green", "cloud king spoon"))
    return [(f"{shots}Copy: {' '.join(one)}\nCopied:", " ".join(one)) for one in lists]


def questions():
    """Multiple choice, with two questions and their answers before each."""
    shots = (
        "Question: What do you drink from?\nChoices: a shoe, a cup, a wall, a key\nAnswer: a cup\n\n"
        "Question: Which animal is a bird?\nChoices: the owl, the dog, the bee, the pig\nAnswer: the owl\n\n"
    )
    found = read_questions(CHOICES)
    return [Question(shots + one.context, one.choices, one.answer) for one in found]


def choices():
    """The same, as texts with their answer."""
    return [(one.context, one.choices[one.answer]) for one in questions()]


def task(llm, asked, decode):
    """The share of right answers, and the mean of the rows that a question takes."""
    right, compute = [], []
    prompts = [llm.tokenizer.encode(question, special=True) for question, _ in asked]
    decoded = decode(llm, prompts, max_tokens=10, stop="\n")
    for (_, answer), (tokens, rows, _) in zip(asked, decoded, strict=True):
        said = llm.tokenizer.decode(tokens).partition("\n")[0].strip()
        right.append(said == answer)
        compute.append(rows)
    return {"right": bootstrap(right), "rows": float(np.mean(compute))}


def packed(llm):
    """Multiple choice by the log-likelihood of each choice; rows are those of the choices' tokens."""
    right, compute = [], []
    for one in questions():
        right.append(int(np.argmax(score_choices(llm, one))) == one.answer)
        compute.append(len(branches(llm, one)))
    return {"right": bootstrap(right), "rows": float(np.mean(compute))}


def branches(llm, question):
    """The beginnings of a question's choices that are computed: a last token is only predicted."""
    ids = [llm.tokenizer.encode(" " + choice) for choice in question.choices]
    return {tuple(one[:n]) for one in ids for n in range(1, len(one))}


TASKS = {"sums": sums, "copies": copies, "choices": choices}


def bootstrap(values):
    """The mean and its interval, the same whatever was measured before."""
    return interval(values, np.random.default_rng(0))


def measure(llm, judge, parts, names, first, kept, save):
    """Fill `kept` with the parts for each of the ways, and save after each."""
    kept.setdefault("texts", {})
    kept.setdefault("tasks", {})
    for name in names:
        tasks = kept["tasks"].setdefault(name, {})
        if name == PACKED:
            tasks |= {"choices": packed(llm)} if "choices" in parts else {}
        else:
            decode = ways()[name]
            tasks |= {part: task(llm, TASKS[part]()[:first], decode) for part in parts if part in TASKS}
            if "texts" in parts:
                kept["texts"][name] = texts(llm, judge, decode, first)
        for part in ("texts", "tasks"):
            kept[part] = {way: kept[part][way] for way in (*ways(), PACKED) if kept[part].get(way)}
        save()
        print(name, json.dumps({**kept["texts"].get(name, {}), **tasks}), flush=True)


def write(path, found):
    """Replace a file at once, so that whoever ends this leaves the old one or the new one."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    part.replace(path)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*ways(), PACKED]
    parser.add_argument("--models", nargs="+", choices=JUDGES, default=MODELS)
    parser.add_argument("--ways", nargs="+", choices=names, metavar="NAME", default=names)
    parser.add_argument("--parts", nargs="+", choices=["texts", *TASKS], default=["texts", *TASKS])
    parser.add_argument("--first", type=int, help="so many prompts and questions only")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    found = json.loads(args.out.read_text("utf-8")) if args.out and args.out.exists() else {}
    wanted = {*args.models, *(JUDGES[name] for name in args.models)}
    llms = {name: stretto.load(name, threads=args.threads, cells=4096) for name in wanted}
    for name in args.models:
        judge = llms[JUDGES[name]]
        kept = found.setdefault(name, {})
        save = (lambda: write(args.out, found)) if args.out else (lambda: None)
        measure(llms[name], judge, args.parts, args.ways, args.first, kept, save)


if __name__ == "__main__":
    main()
