"""Draws the page's icons: three voices, each entering before the one above it has ended.

python scripts/page_icons.py        writes icon-192.png and icon-512.png beside icon.svg
"""

from pathlib import Path

from PIL import Image, ImageColor, ImageDraw

FOLDER = Path(__file__).resolve().parent.parent / "src" / "stretto" / "server" / "page"
INK = "#14161a"
VOICES = (((112, 304), 160, "#ffb074"), ((176, 368), 256, "#e8e6e1"), ((240, 400), 352, "#8fb8ff"))
HALF_STROKE = 22
SMOOTH = 4  # drawn larger, then made smaller


def draw(size):
    scale = size * SMOOTH / 512
    image = Image.new("RGB", (size * SMOOTH, size * SMOOTH), INK)
    pen = ImageDraw.Draw(image)
    for (left, right), y, color in VOICES:
        box = (left - HALF_STROKE, y - HALF_STROKE, right + HALF_STROKE, y + HALF_STROKE)
        pen.rounded_rectangle([scale * edge for edge in box], scale * HALF_STROKE, color)
    return image.resize((size, size), Image.Resampling.LANCZOS).quantize(
        palette=palette(), dither=Image.Dither.NONE
    )


def palette():
    """The colours, and each half mixed into the ground for smooth edges: few, so that files are small."""
    ground, *voices = (ImageColor.getrgb(color) for color in (INK, *(color for _, _, color in VOICES)))
    mixed = [tuple((a + b) // 2 for a, b in zip(ground, voice, strict=True)) for voice in voices]
    image = Image.new("P", (1, 1))
    image.putpalette([part for color in (ground, *voices, *mixed) for part in color])
    return image


if __name__ == "__main__":
    for size in (192, 512):
        draw(size).save(FOLDER / f"icon-{size}.png", optimize=True)
