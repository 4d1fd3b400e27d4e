"""From an image to a graph's input, and from the input's coordinates back to the image's.

    preparation = Preparation(width=640, height=640, fit="letterbox", scale=1 / 255)
    tensor, placement = prepare(image.pixels, preparation)
    placement.to_image(boxes)        # boxes in pixels of the image

No image is ever made larger than the input on the way there, whatever its shape, so that one of a single row
of pixels costs no more than any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.vision.decode import Pixels

FITS = ("stretch", "crop", "letterbox")
FILTERS = ("linear", "nearest", "bilinear", "bicubic", "lanczos", "box")

Floats = NDArray[np.floating[Any]]
Region = tuple[float, float, float, float]  # x0, y0, x1, y1


@dataclass(frozen=True)
class Preparation:
    """What a graph expects of its input.

    `fit` is how an image gets the input's size: "stretch" resizes it as it is, "crop" resizes its shorter
    edge to `edge` pixels and cuts the middle out, "letterbox" keeps its shape and fills the rest with `fill`,
    on both sides or, unless `centered`, below and to the right. `filter` is one of Pillow's, which average
    over all pixels when they shrink an image, or "linear", which takes the nearest four, as OpenCV does.

    Then each channel is `(value × scale − mean) ÷ std`.
    """

    width: int
    height: int
    fit: str = "stretch"
    edge: int | None = None
    filter: str = "linear"
    centered: bool = True
    fill: int = 114
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    bgr: bool = False
    channels_last: bool = False


@dataclass(frozen=True)
class Placement:
    """Where the image lies in the input: input = image × scale + offset."""

    scale_x: float
    scale_y: float
    left: float
    top: float
    width: int  # of the image
    height: int

    def to_image(self, points: Floats) -> NDArray[np.float64]:
        """float64[…, 2 × n]: x, y, x, y, … in pixels of the image, and none outside of it."""
        made = np.asarray(points, np.float64).copy()
        made[..., 0::2] = np.clip((made[..., 0::2] - self.left) / self.scale_x, 0, self.width)
        made[..., 1::2] = np.clip((made[..., 1::2] - self.top) / self.scale_y, 0, self.height)
        return made


def prepare(pixels: Pixels, how: Preparation) -> tuple[NDArray[np.float32], Placement]:
    """float32[3, height, width] (or channels last) of uint8[h, w, 3], and where the image lies in it."""
    fitted, placement = _FITTED[how.fit](pixels, how)
    return normalize(fitted, how), placement


def normalize(pixels: Pixels, how: Preparation) -> NDArray[np.float32]:
    """Scaled channels in the order that the graph wants."""
    factor = np.float32(how.scale) / np.asarray(how.std, np.float32)
    shift = np.asarray(how.mean, np.float32) / np.asarray(how.std, np.float32)
    ordered = pixels[:, :, ::-1] if how.bgr else pixels
    height, width = pixels.shape[:2]
    made = np.empty((height, width, 3) if how.channels_last else (3, height, width), np.float32)
    for channel, out in enumerate(made.transpose(2, 0, 1) if how.channels_last else made):
        np.multiply(ordered[:, :, channel], factor[channel], out=out)
        out -= shift[channel]
    return made


def resize(pixels: Pixels, width: int, height: int, how: str, box: Region | None = None) -> Pixels:
    """uint8[height, width, 3] of an image, or of a region of it, by one of `FILTERS`."""
    region = box or (0.0, 0.0, float(pixels.shape[1]), float(pixels.shape[0]))
    if how == "linear":
        return _resize_linear(pixels, width, height, region)
    from PIL import Image as Pillow

    resample = Pillow.Resampling[how.upper()]
    return np.asarray(Pillow.fromarray(pixels).resize((width, height), resample, box=region))


def _stretch(pixels: Pixels, how: Preparation) -> tuple[Pixels, Placement]:
    height, width = pixels.shape[:2]
    placement = Placement(how.width / width, how.height / height, 0, 0, width, height)
    return resize(pixels, how.width, how.height, how.filter), placement


def _crop(pixels: Pixels, how: Preparation) -> tuple[Pixels, Placement]:
    """Only the region that is shown is resized, so that a long image costs no more than another."""
    height, width = pixels.shape[:2]
    short = how.edge or min(how.width, how.height)
    share = max(short / min(height, width), how.width / width, how.height / height)
    new_width, new_height = max(how.width, round(width * share)), max(how.height, round(height * share))
    scale_x, scale_y = new_width / width, new_height / height
    x, y = (new_width - how.width) // 2, (new_height - how.height) // 2
    right, bottom = min(width, (x + how.width) / scale_x), min(height, (y + how.height) / scale_y)
    made = resize(pixels, how.width, how.height, how.filter, (x / scale_x, y / scale_y, right, bottom))
    return made, Placement(scale_x, scale_y, -x, -y, width, height)


def _letterbox(pixels: Pixels, how: Preparation) -> tuple[Pixels, Placement]:
    height, width = pixels.shape[:2]
    share = min(how.width / width, how.height / height)
    new_width = min(how.width, max(1, round(width * share)))
    new_height = min(how.height, max(1, round(height * share)))
    left = (how.width - new_width) // 2 if how.centered else 0
    top = (how.height - new_height) // 2 if how.centered else 0
    canvas = np.full((how.height, how.width, 3), how.fill, np.uint8)
    resized = resize(pixels, new_width, new_height, how.filter)
    canvas[top : top + new_height, left : left + new_width] = resized
    return canvas, Placement(new_width / width, new_height / height, left, top, width, height)


_FITTED = {"stretch": _stretch, "crop": _crop, "letterbox": _letterbox}


def _resize_linear(pixels: Pixels, width: int, height: int, region: Region) -> Pixels:
    """Each pixel is the weighted mean of the four nearest of the image; centres of pixels stand at halves."""
    if pixels.shape[:2] == (height, width) and region == (0, 0, width, height):
        return pixels
    rows = partial(_blend, axis=0, n=height, start=region[1], stop=region[3])
    columns = partial(_blend, axis=1, n=width, start=region[0], stop=region[2])
    # The edge that shrinks more goes first, so that what lies between is never large.
    order = (rows, columns) if height * pixels.shape[1] <= width * pixels.shape[0] else (columns, rows)
    made: Pixels = np.rint(order[1](order[0](pixels))).astype(np.uint8)
    return made


def _blend(values: NDArray[Any], axis: int, n: int, start: float, stop: float) -> NDArray[np.float32]:
    size = values.shape[axis]
    at = np.clip(start + (np.arange(n) + 0.5) * ((stop - start) / n) - 0.5, 0, size - 1)
    low = at.astype(np.int64)
    share = (at - low).astype(np.float32).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    first = values.take(low, axis).astype(np.float32)
    second = values.take(np.minimum(low + 1, size - 1), axis).astype(np.float32)
    return np.asarray(first + (second - first) * share, np.float32)
