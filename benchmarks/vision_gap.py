"""The longest gap in a running stream while a picture is encoded for another request.

    python benchmarks/vision_gap.py --rounds 5 --threads 2

The model has SmolVLM-256M's dimensions and random weights, as in vision.py; every round has a picture of its
own, so each is encoded. The gap alone is that of the same stream without company.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import stretto
from vision import models


def gaps(stream, over):
    """Seconds between the tokens of a stream until `over(how many there were)`."""
    found, last = [], time.perf_counter()
    while not over(len(found)):
        next(stream)
        now = time.perf_counter()
        found.append(now - last)
        last = now
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="with a tiny model, to try the program out")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "stretto-bench"))
    args = parser.parse_args()
    model, mmproj, size = next(iter(models(args).values()))
    longest, waits, alone = [], [], []
    with stretto.load(model, vision=mmproj, threads=args.threads, image_cache=False) as llm:
        for number in range(args.rounds + 1):  # the first warms up
            pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), np.uint8)
            question = (stretto.Image.open(pixels), "What is this?")
            with llm.stream([5, 6, 7], max_tokens=2000, ignore_eos=True, temperature=0) as running:
                quiet = gaps(running, lambda n: n == 32)
                answers, begun = [], time.perf_counter()
                with llm.stream(question, max_tokens=1, temperature=0, callback=answers.append):
                    busy = gaps(running, lambda _, answers=answers: answers)
                waits.append(time.perf_counter() - begun)
                longest.append(max(busy))
                alone.append(max(quiet))
        assert llm.vision.n_encoded == args.rounds + 1
    print(f"`python benchmarks/vision_gap.py --rounds {args.rounds} --threads {args.threads}`\n")
    print("| longest gap, ms: median | rounds | alone | the picture's first token, ms |\n|---|---|---|---|")
    shown = [f"{1e3 * value:.0f}" for value in longest[1:]]
    print(
        f"| **{1e3 * median(longest[1:]):.0f}** | {', '.join(shown)} "
        f"| {1e3 * median(alone[1:]):.0f} | {1e3 * median(waits[1:]):.0f} |"
    )


if __name__ == "__main__":
    main()
