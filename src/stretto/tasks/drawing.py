"""Draws results onto images.

    draw_boxes("street.jpg", [("cat", "cat 0.91", (10, 20, 60, 80), ())]).save("out.png")

An image is anything that `stretto.Image.open` takes. Sizes follow the image, so that labels can be read on a
thumbnail and on a photograph.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest
from stretto.vision.image import Image

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

Point = tuple[float, float]
Labelled = tuple[
    str, str, tuple[float, float, float, float], tuple[Point, ...]
]  # class, text, box, landmarks

_COLORS = ((214, 39, 40), (31, 119, 180), (44, 160, 44), (148, 103, 189), (255, 127, 14), (23, 130, 150))
_TINT = (214, 39, 40)


def draw_boxes(image: Any, boxes: Sequence[Labelled]) -> PillowImage:
    """The image with boxes, their texts and landmarks; a class always has the same colour."""
    from PIL import ImageDraw

    canvas = _canvas(image)
    pen, width, font = ImageDraw.Draw(canvas), _stroke(canvas), _font(canvas)
    for name, text, box, points in boxes:
        color = _COLORS[zlib.crc32(name.encode()) % len(_COLORS)]
        pen.rectangle(box, outline=color, width=width)
        for x, y in points:
            pen.ellipse((x - width, y - width, x + width, y + width), fill=color)
        _tag(pen, box[:2], text, color, font)
    return canvas


def draw_outlines(image: Any, outlines: Sequence[tuple[Point, ...]]) -> PillowImage:
    """The image with polygons, numbered in their order."""
    from PIL import ImageDraw

    canvas = _canvas(image)
    pen, width, font = ImageDraw.Draw(canvas), _stroke(canvas), _font(canvas)
    for number, corners in enumerate(outlines, 1):
        color = _COLORS[number % len(_COLORS)]
        pen.polygon(list(corners), outline=color, width=width)
        _tag(pen, corners[0], str(number), color, font)
    return canvas


def draw_mask(image: Any, alpha: NDArray[np.float32]) -> PillowImage:
    """The image with its foreground tinted."""
    from PIL import Image as Pillow

    pixels = _pixels(image, alpha).astype(np.float32)
    share = 0.5 * np.clip(alpha, 0, 1)[:, :, None]
    mixed = pixels * (1 - share) + np.asarray(_TINT, np.float32) * share
    return Pillow.fromarray(np.rint(mixed).astype(np.uint8))


def cut_out(image: Any, alpha: NDArray[np.float32]) -> PillowImage:
    """The image with `alpha` as its transparency."""
    from PIL import Image as Pillow

    levels = np.rint(255 * np.clip(alpha, 0, 1)).astype(np.uint8)
    return Pillow.fromarray(np.dstack((_pixels(image, alpha), levels)))


def _pixels(image: Any, alpha: NDArray[np.float32]) -> NDArray[np.uint8]:
    pixels = Image.open(image).pixels
    if pixels.shape[:2] != alpha.shape:
        raise InvalidRequest(
            f"the image has {pixels.shape[1]} × {pixels.shape[0]} pixels and the mask {alpha.shape[1]} × "
            f"{alpha.shape[0]}; give the image that was segmented",
            param="image",
        )
    return pixels


def _canvas(image: Any) -> PillowImage:
    from PIL import Image as Pillow

    return Pillow.fromarray(Image.open(image).pixels)


def _stroke(canvas: PillowImage) -> int:
    return max(2, round(max(canvas.size) / 300))


def _font(canvas: PillowImage) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(max(10, round(max(canvas.size) / 50)))


def _tag(pen: Any, corner: tuple[float, float], text: str, color: tuple[int, int, int], font: Any) -> None:
    """A label on a filled rectangle that ends at `corner`, or begins there at the image's upper edge."""
    x, y = corner
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    height = bottom - top + 4
    y = y - height if y >= height else y
    pen.rectangle((x, y, x + right - left + 4, y + height), fill=color)
    pen.text((x + 2 - left, y + 2 - top), text, fill=(255, 255, 255), font=font)
