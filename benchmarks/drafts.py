"""Prompt lookup against plain decoding: how much faster it copies, edits code, and writes prose.

    python benchmarks/drafts.py --rounds 8 --threads 2

Each sample with guesses stands next to one without, by turns, of the same prompt and seed; the texts are
asserted to be the same. The prompt is in the cache, so that only decoding is timed. Prose begins from texts
that hold nothing to copy: what guessing costs there is in the last rows. All samples go to --out.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import stretto

HERE = Path(__file__).parent
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
COPIED = f"A letter:\n\n{LETTER}\n\nThe same letter again, word for word:\n\n"
EDITED = f"# Version 1\n{CODE}\n\n# Version 2: the same functions, with type hints\n{CODE[:30]}"
PROMPTS = {
    "copying": [COPIED + LETTER[:40], COPIED + LETTER[: LETTER.index("In the")]],
    "code editing": [EDITED, EDITED + CODE[30:90]],
    "prose": [
        "Once upon a time, in a village by the sea, there lived an old sailor who",
        "The history of astronomy begins long before telescopes. The first people who looked at the sky",
        "My grandmother used to tell me that the best bread is made slowly. First she",
    ],
}


def decode(llm, prompt, tokens, temperature, seed, **options):
    """Seconds, and the tokens."""
    llm.generate(prompt, max_tokens=1)  # it is in the cache then
    begun = time.perf_counter()
    result = llm.generate(
        prompt, max_tokens=tokens, ignore_eos=True, temperature=temperature, seed=seed, **options
    )
    return time.perf_counter() - begun, result.tokens


def measure(llm, args):
    """A pair of samples for each kind of text, prompt, way to sample and round; the first round warms up."""
    samples = []
    for number in range(args.rounds + 1):
        for kind, prompts in PROMPTS.items():
            for prompt in prompts:
                for temperature in (0.0, 0.8):
                    seconds, texts = {}, {}
                    before = llm.metrics.drafted_tokens, llm.metrics.accepted_tokens
                    for draft in (None, "lookup") if number % 2 else ("lookup", None):
                        seconds[draft], texts[draft] = decode(
                            llm, prompt, args.tokens, temperature, number, draft=draft
                        )
                    assert texts[None] == texts["lookup"], "the text has changed"
                    if number:
                        guessed, right = (
                            llm.metrics.drafted_tokens - before[0],
                            llm.metrics.accepted_tokens - before[1],
                        )
                        samples.append(
                            {
                                "kind": kind,
                                "temperature": temperature,
                                "plain": seconds[None],
                                "lookup": seconds["lookup"],
                                "guessed": guessed,
                                "right": right,
                            }
                        )
    return samples


def table(samples):
    print("| text | temperature | plain tok/s | speed-up | guessed a token | of these right |")
    print("|---|---|---|---|---|---|")
    for kind in PROMPTS:
        for temperature in (0.0, 0.8):
            mine = [s for s in samples if (s["kind"], s["temperature"]) == (kind, temperature)]
            tokens = mine[0]["tokens"] * len(mine)
            guessed, right = sum(s["guessed"] for s in mine), sum(s["right"] for s in mine)
            print(
                f"| {kind} | {temperature:g} | {median(s['tokens'] / s['plain'] for s in mine):.0f} "
                f"| **{median(s['plain'] / s['lookup'] for s in mine):.2f} ×** "
                f"| {guessed / tokens:.2f} | {right / max(1, guessed):.0%} |"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=HERE / "raw" / "drafts.json")
    args = parser.parse_args()
    with stretto.load(args.model, threads=args.threads, cells=4096) as llm:
        samples = [{**sample, "tokens": args.tokens} for sample in measure(llm, args)]
    command = (
        f"python benchmarks/drafts.py --model {args.model} --rounds {args.rounds} --threads {args.threads}"
    )
    args.out.write_text(json.dumps({"command": command, "samples": samples}, indent=1) + "\n")
    print(f"`{command}`\n")
    table(samples)


if __name__ == "__main__":
    main()
