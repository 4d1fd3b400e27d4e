"""Draws the images of docs/how-to/tasks: what the models find in the images of the tests.

python scripts/task_pictures.py
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import stretto

ROOT = Path(__file__).parent.parent
DATA, OUT = ROOT / "tests" / "data" / "tasks", ROOT / "docs" / "images"
COFFEE, ASTRONAUT, PAGE = DATA / "coffee.jpg", DATA / "astronaut.jpg", DATA / "page.png"
HEIGHT = 300


def beside(*images: Image.Image) -> Image.Image:
    """The images side by side, in one height."""
    scaled = [image.resize((round(image.width * HEIGHT / image.height), HEIGHT)) for image in images]
    canvas = Image.new(
        "RGB", (sum(image.width for image in scaled) + 10 * (len(scaled) - 1), HEIGHT), "white"
    )
    left = 0
    for image in scaled:
        canvas.paste(image, (left, 0))
        left += image.width + 10
    return canvas


def bars(result) -> Image.Image:
    """The labels with a bar for each score."""
    canvas = Image.new("RGB", (420, HEIGHT), "white")
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(17)
    for number, label in enumerate(result):
        top = 10 + 56 * number
        pen.text((10, top), label.name, "black", font)
        pen.rectangle((10, top + 26, 10 + max(2, 300 * label.score), top + 40), fill=(31, 119, 180))
        pen.text((320, top + 22), f"{label.score:.3f}", (90, 90, 90), font)
    return canvas


def on_squares(cut: Image.Image) -> Image.Image:
    """A cut-out on the grey squares that stand for transparency."""
    y, x = np.indices((cut.height, cut.width)) // 12
    ground = Image.fromarray(np.where((x + y) % 2, 255, 215).astype(np.uint8)).convert("RGBA")
    return Image.alpha_composite(ground, cut).convert("RGB")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    labels = stretto.load("efficientnet-lite0").classify(COFFEE)
    beside(Image.open(COFFEE), bars(labels)).save(OUT / "classify.jpg", quality=80)
    people, cups = stretto.load("centernet").detect([ASTRONAUT, COFFEE])
    faces = stretto.load("centerface").detect(ASTRONAUT)
    drawn = faces.draw(people.draw(ASTRONAUT))
    beside(drawn, cups.draw(COFFEE)).save(OUT / "detect.jpg", quality=78)
    page = stretto.load("layout").detect(PAGE).draw(PAGE)
    page.resize((532, 700), Image.Resampling.LANCZOS).quantize(24).save(OUT / "layout.png", optimize=True)
    mask = stretto.load("u2net").segment(COFFEE)
    beside(mask.draw(COFFEE), on_squares(mask.cut_out(COFFEE))).save(OUT / "segment.jpg", quality=78)


if __name__ == "__main__":
    main()
