"""How far the image models are from the answers of their own packages, on the images of the tests.

    python benchmarks/image_answers.py

tests/data/tasks holds the answers: answers.json, rounded to four or five digits, and coffee-mask.png, in 256
levels. README.md there names the packages. `pytest tests/tasks` asserts bounds, this prints the figures.
"""

import json
from pathlib import Path

import numpy as np
from PIL import Image

import stretto

DATA = Path(__file__).parent.parent / "tests" / "data" / "tasks"
ANSWERS = json.loads((DATA / "answers.json").read_text("utf-8"))
TURNS = (0, 90, 180, 270)


def classified():
    """The greatest difference of a score, and whether all labels are in the same order, for each model."""
    names = ("coffee.jpg", "astronaut.jpg")
    with stretto.load("efficientnet-lite0", device="cpu") as model:
        pairs = [(model.classify(DATA / name), ANSWERS["efficientnet-lite0"][name]) for name in names]
        same = all([label.name for label in r] == [model.labels[n] for n, _ in a] for r, a in pairs)
    scores = [(label.score, score) for r, a in pairs for label, (_, score) in zip(r, a, strict=True)]
    yield "efficientnet-lite0", same, np.abs(np.diff(scores)).max()
    page = Image.open(DATA / "page.png")
    with stretto.load("orientation", device="cpu") as model:
        results = [model.classify(page.rotate(-angle, expand=True)) for angle in TURNS]
    found = [{label.name: label.score for label in r} for r in results]
    rows = [[scores[str(angle)] for angle in TURNS] for scores in found]
    answers = np.array(list(ANSWERS["orientation"].values()))
    same = [r.best.name for r in results] == [str(angle) for angle in TURNS]
    yield "orientation", same, np.abs(np.array(rows) - answers).max()


def segmented():
    """The mean difference of alpha, and the intersection over union of the masks."""
    with stretto.load("u2net", device="cpu") as model:
        result = model.segment(DATA / "coffee.jpg")
    answer = np.asarray(Image.open(DATA / "coffee-mask.png"), np.float32) / 255
    mask, other = result.mask, answer >= 0.5
    return np.abs(result.alpha - answer).mean(), (mask & other).sum() / (mask | other).sum()


def main():
    print("| model | the same labels in the same order | scores differ by |\n|---|---|---|")
    for name, same, distance in classified():
        print(f"| `{name}` | {'yes' if same else 'no'} | {distance:.1g} |")
    alpha, union = segmented()
    print(f"\n`u2net`: alpha differs by {alpha:.2g} on average, IoU of the masks {union:.5f}")


if __name__ == "__main__":
    main()
