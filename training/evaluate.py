"""Asks the shipped model about pictures it has not seen, in words it has not seen, and a blind one beside it.

    python training/evaluate.py training/results.json [--questions 200] [--vision sketch] [--model smollm2]

Every answer goes the way a user's does: the `mmproj` file, the quantised language model, the native backend,
greedy decoding. Unseen things are pairs of shape and colour, words and numbers never drawn in training. The
blind run asks the same about noise: what it gets right needs no eyes.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from questions import TEST, TRAIN, Question, ask
from scenes import draw, make_scene, noise

import stretto

KINDS = {
    "single": ("colour", "shape", "size", "place", "caption"),
    "several": ("colour of", "shape of", "side", "height", "is there"),
    "count": ("count",),
    "word": ("word",),
    "number": ("number",),
}


def examples(n: int, unseen: bool, phrasings: dict[str, Any], seed: int) -> list[tuple[Question, np.ndarray]]:
    """`n` questions of each type, each about a picture of its own."""
    found = []
    for index, (scene_kind, kinds) in enumerate(KINDS.items()):
        rng = np.random.default_rng([seed, 2024, index, unseen])
        missing = dict.fromkeys(kinds, n)
        while missing:
            scene = make_scene(rng, unseen=unseen, kind=scene_kind)
            for question in ask(scene, rng, phrasings):
                if missing.get(question.kind):
                    found.append((question, draw(scene, rng)))
                    missing[question.kind] -= 1
                    if not missing[question.kind]:
                        del missing[question.kind]
                    break
    return found


def answers(llm: stretto.LLM, asked: list[tuple[Question, np.ndarray]]) -> list[str]:
    """What the model says to each, greedily."""
    prompts = [
        llm.chat_prompt([{"role": "user", "content": [stretto.Image.open(pixels), question.text]}])
        for question, pixels in asked
    ]
    found = []
    for first in range(0, len(prompts), 32):
        results = llm.generate(prompts[first : first + 32], temperature=0, max_tokens=16)
        found += [result.text.strip() for result in results]
    return found


def share(asked: list[tuple[Question, np.ndarray]], said: list[str]) -> dict[str, float]:
    """The part of right answers by type."""
    right = defaultdict(list)
    for (question, _), answer in zip(asked, said, strict=True):
        right[question.kind].append(answer.lower().rstrip(".") == question.answer.lower().rstrip("."))
    return {kind: round(float(np.mean(values)), 4) for kind, values in right.items()}


def main() -> None:
    """Run all of it, and write the shares down."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("results", type=Path)
    arguments.add_argument("--questions", type=int, default=200)
    arguments.add_argument("--vision", default="sketch")
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    found: dict[str, Any] = {"questions of each type": options.questions, "seed": options.seed}
    with stretto.load(options.model, vision=options.vision, cells=16384) as llm:
        for name, unseen, phrasings in (
            ("unseen things, unseen phrasings", True, TEST),
            ("seen things, unseen phrasings", False, TEST),
            ("seen things, seen phrasings", False, TRAIN),
        ):
            asked = examples(options.questions, unseen, phrasings, options.seed)
            said = answers(llm, asked)
            found[name] = share(asked, said)
            wrong = [
                (q.text, q.answer, a)
                for (q, _), a in zip(asked, said, strict=True)
                if a.lower() != q.answer.lower()
            ]
            print(f"{name}: {found[name]}\n   for instance {wrong[:4]}", flush=True)
        asked = examples(options.questions, True, TEST, options.seed)
        rng = np.random.default_rng(options.seed)
        blind = [(question, noise(rng)) for question, _ in asked]
        found["blind"] = share(blind, answers(llm, blind))
        print(f"blind: {found['blind']}", flush=True)
    options.results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
