"""Prompt lookup against plain decoding, in lines and in trees: how it copies, edits code, and writes prose.

    python benchmarks/drafts.py --rounds 8 --threads 2
    python benchmarks/drafts.py --rounds 10 --auto --branches
    python benchmarks/drafts.py --model qwen2.5-coder-1.5b --small qwen2.5-coder-0.5b --kinds Python

With `--auto` drafts that have to pay are measured too, and no sample finds the text of another in the cache.
With `--small` a smaller model drafts, as `--ways` say: so many tokens, of at least such a probability.

Samples with drafts stand next to one without, by turns, of the same prompt and seed; the texts are asserted
to be the same. The prompt is in the cache, so that only decoding is timed. Prose begins from texts
that hold nothing to copy: what guessing costs there is in the last rows. All samples go to --out, by default
a file of benchmarks/raw that is named after the CPU.
"""

import argparse
import json
import re
import shlex
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median

import stretto
from stretto.hardware import cpu_name

HERE = Path(__file__).parent
SALTS = count()  # a sample's own: it finds the text of no other in the cache
LETTER = """Dear members, the committee met on Tuesday and discussed the budget for the next three years.
Several members asked for a smaller share of the costs, while others wanted to build a new hall beside the
old mill. In the end they agreed on a plan that everyone could accept: the hall will be built in two parts,
and the first of them will be paid for by the sale of the meadow. The next meeting is on the second Monday
of March."""
CODE = '''def area(shape, width, height):
    """The area of a shape."""
    if shape == "rectangle":
        return width * height
    if shape == "triangle":
        return width * height / 2
    raise ValueError(shape)


def perimeter(shape, width, height):
    """The length of a shape's border."""
    if shape == "rectangle":
        return 2 * (width + height)
    raise ValueError(shape)
'''
ROW = '{{"name": "{}", "kind": "{}", "city": "{}", "open": {}}},\n'
RECORDS = "[\n" + "".join(
    ROW.format(*row)
    for row in [
        ("Louvre", "museum", "Paris", "true"),
        ("Prater", "park", "Vienna", "true"),
        ("Uffizi", "museum", "Florence", "false"),
        ("Tivoli", "park", "Copenhagen", "false"),
        ("Prado", "museum", "Madrid", "true"),
    ]
)
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
TASKS = [
    "Write a Python class for a binary search tree with insert, delete and in-order traversal.",
    "Write a Python script that reads a CSV file and prints the mean of each numeric column, without pandas.",
    "Write a C function that reverses a singly linked list, and a main function that tests it.",
    "Write a JavaScript debounce function with unit tests in Jest.",
]
COPIED = f"A letter:\n\n{LETTER}\n\nThe same letter again, word for word:\n\n"
EDITED = f"# Version 1\n{CODE}\n\n# Version 2: the same functions, with type hints\n{CODE[:30]}"
PROMPTS = {
    "copying": [COPIED + LETTER[:40], COPIED + LETTER[: LETTER.index("In the")]],
    "code editing": [EDITED, EDITED + CODE[30:90]],
    "records": [RECORDS, RECORDS.replace("Paris", "Rome")],
    "Python": [CHAT.format(task) for task in TASKS[:2]],
    "C, JavaScript": [CHAT.format(task) for task in TASKS[2:]],
    "prose": [
        "Once upon a time, in a village by the sea, there lived an old sailor who",
        "The history of astronomy begins long before telescopes. The first people who looked at the sky",
        "My grandmother used to tell me that the best bread is made slowly. First she",
    ],
}


def decode(llm, prompt, tokens, temperature, seed, **options):
    """Seconds, and the tokens."""
    prompt = llm.tokenizer.encode(prompt, special=True)
    options["cache_salt"] = str(next(SALTS))
    llm.generate(prompt, max_tokens=1, cache_salt=options["cache_salt"])  # it is in the cache then
    begun = time.perf_counter()
    result = llm.generate(
        prompt, max_tokens=tokens, ignore_eos=True, temperature=temperature, seed=seed, **options
    )
    return time.perf_counter() - begun, result.tokens


def variants(branches, small, ways, auto):
    """The ways to decode: plain, a line of drafts, and trees or a small model's drafts."""
    several = {"plain": {}, "lookup": {"draft": "lookup"}}
    if auto:
        several["auto"] = {"draft": "auto"}
    for n in branches if small is None else ():
        several[f"tree {n}"] = {"draft": "lookup", "draft_branches": n}
    for way in ways if small is not None else ():
        most, least = way.split(",")
        several[f"{most} tokens of {least}"] = {
            "draft": stretto.DraftModel(small, most=int(most), least=float(least))
        }
    return several


def measure(llm, small, args):
    """Samples side by side for each kind of text, prompt and way to sample; the first round warms up."""
    samples = []
    ways = variants(args.branches, small, args.ways, args.auto)
    for number in range(args.rounds + 1):
        names = list(ways)[:: 1 if number % 2 else -1]
        for kind, prompts in PROMPTS.items():
            for prompt in prompts:
                for temperature in args.temperatures:
                    seconds, texts, counts = {}, {}, {}
                    for name in names:
                        before = llm.metrics.drafted_tokens, llm.metrics.accepted_tokens
                        seconds[name], texts[name] = decode(
                            llm, prompt, args.tokens, temperature, number, **ways[name]
                        )
                        counts[name] = {
                            "guessed": llm.metrics.drafted_tokens - before[0],
                            "right": llm.metrics.accepted_tokens - before[1],
                        }
                    assert all(text == texts["plain"] for text in texts.values()), "the text has changed"
                    if number:
                        samples.append(
                            {
                                "kind": kind,
                                "temperature": temperature,
                                "seconds": seconds,
                                "counts": counts,
                                "tokens": args.tokens,
                            }
                        )
    return samples


def table(samples):
    print("| text | temperature | drafts | speed-up | × a line | tokens a pass | drafted a token |")
    print("|---|---|---|---|---|---|---|")
    names = [name for name in samples[0]["seconds"] if name != "plain"]
    for kind in dict.fromkeys(s["kind"] for s in samples):
        for temperature in sorted({s["temperature"] for s in samples}):
            mine = [s for s in samples if (s["kind"], s["temperature"]) == (kind, temperature)]
            tokens = sum(s["tokens"] for s in mine)
            for name in sorted(names):
                guessed = sum(s["counts"][name]["guessed"] for s in mine)
                right = sum(s["counts"][name]["right"] for s in mine)
                ratio = {
                    base: median(s["seconds"][base] / s["seconds"][name] for s in mine)
                    for base in ("plain", "lookup")
                }
                print(
                    f"| {kind} | {temperature:g} | {name} | **{ratio['plain']:.2f} ×** "
                    f"| {ratio['lookup']:.2f} | {tokens / (tokens - right):.2f} | {guessed / tokens:.2f} |"
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--branches", type=int, nargs="*", default=[2, 4], help="of trees")
    parser.add_argument("--auto", action="store_true", help='draft="auto" too')
    parser.add_argument("--kinds", nargs="*", default=list(PROMPTS), choices=list(PROMPTS))
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0, 0.8])
    parser.add_argument("--small", help="a model that drafts, with the tokens of --model")
    ways = "2,0", "3,0.3", "4,0", "5,0.3", "8,0.3"
    parser.add_argument("--ways", nargs="*", default=ways, help="of --small: tokens,probability")
    slug = re.sub(r"\([^)]*\)|\W+", "-", cpu_name()).strip("-").lower()
    parser.add_argument("--out", type=Path, default=HERE / "raw" / f"drafts-{slug}.json")
    args = parser.parse_args()
    for kind in set(PROMPTS) - set(args.kinds):
        del PROMPTS[kind]
    with ExitStack() as opened:
        llm, small = (
            name and opened.enter_context(stretto.load(name, threads=args.threads, cells=4096))
            for name in (args.model, args.small)
        )
        samples = measure(llm, small, args)
    command = (
        f"python benchmarks/drafts.py --model {args.model} --rounds {args.rounds} --threads {args.threads} "
        f"--tokens {args.tokens}"
    )
    if args.auto:
        command += f" --auto --branches {shlex.join(map(str, args.branches))}".rstrip()
    if args.small:
        command += f" --small {args.small} --kinds {shlex.join(PROMPTS)}"
    found = {"command": command, "cpu": cpu_name(), "samples": samples}
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"`{command}`\n")
    table(samples)


if __name__ == "__main__":
    main()
