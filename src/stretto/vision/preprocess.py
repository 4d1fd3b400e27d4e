"""From an image to the patches that an encoder takes, as the models' own processors do it.

    mlp        padded to a square with the mean colour, resized (bicubic)
    gemma3     resized (bilinear), whatever its shape
    idefics3   resized until its longest edge fits, then to whole tiles (Lanczos); the tiles row by row, and
               last all of it in one more tile

In `transformers`: LlavaImageProcessorPil (do_pad), Gemma3ImageProcessorPil, Idefics3ImageProcessorPil.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from stretto.vision.decode import Pixels
from stretto.vision.image import Image
from stretto.vision.spec import VisionSpec

Floats = NDArray[np.float32]

MAX_EDGE_PIXELS = 4096  # a larger image is scaled down before anything else


@dataclass(frozen=True)
class Prepared:
    """An image as an encoder takes it: its tiles, in a grid; one that was not split has no rows."""

    tiles: Pixels  # uint8[n, image_size, image_size, 3]
    rows: int = 0
    columns: int = 0

    def digest(self) -> bytes:
        """SHA-256 of the pixels and the grid."""
        head = f"{self.tiles.shape} {self.rows} {self.columns}".encode()
        return sha256(head + np.ascontiguousarray(self.tiles).tobytes()).digest()


def prepare(image: Image, spec: VisionSpec) -> Prepared:
    """The tiles of an image, resized but not yet normalised."""
    pixels, size = image.pixels, spec.image_size
    if max(pixels.shape[:2]) > MAX_EDGE_PIXELS:
        height, width = _longest(pixels.shape[0], pixels.shape[1], MAX_EDGE_PIXELS)
        pixels = _resize(pixels, height, width, "box")
    if spec.projector == "mlp":
        colour = tuple(int(255 * part) for part in spec.mean)
        return Prepared(_resize(_square(pixels, colour), size, size, "bicubic")[None])
    if spec.projector == "gemma3":
        return Prepared(_resize(pixels, size, size, "bilinear")[None])
    return _split(pixels, size, spec.longest_edge)


def normalise(tiles: Pixels, spec: VisionSpec) -> Floats:
    """float32[n, n_patches, 3 × patch × patch]: patches row by row, each channel by channel."""
    n, side, patch = len(tiles), spec.n_side, spec.patch_size
    scaled: Floats = tiles.astype(np.float32) * np.float32(1 / 255)
    scaled -= np.array(spec.mean, np.float32)
    scaled /= np.array(spec.std, np.float32)
    parts = scaled.reshape(n, side, patch, side, patch, 3)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 5, 2, 4)).reshape(n, side * side, -1)


def _split(pixels: Pixels, size: int, longest_edge: int) -> Prepared:
    height, width = _even(pixels.shape[0], pixels.shape[1], longest_edge)
    pixels = _resize(pixels, height, width, "lanczos")
    rows, columns = _tiles(height, width, size)
    pixels = _resize(pixels, rows * size, columns * size, "lanczos")
    if rows == columns == 1:
        return Prepared(pixels[None])
    parts = pixels.reshape(rows, size, columns, size, 3).swapaxes(1, 2).reshape(-1, size, size, 3)
    whole = _resize(pixels, size, size, "lanczos")
    return Prepared(np.concatenate((parts, whole[None])), rows, columns)


def _longest(height: int, width: int, edge: int) -> tuple[int, int]:
    """A size of the same shape whose longest edge is `edge`."""
    if width >= height:
        return max(1, int(edge * height / width)), edge
    return edge, max(1, int(edge * width / height))


def _even(height: int, width: int, edge: int) -> tuple[int, int]:
    """The same, with the shorter edge rounded up to an even number."""
    if width >= height:
        short = int(edge / (width / height))
        return max(1, short + short % 2), edge
    short = int(edge * (width / height))
    return edge, max(1, short + short % 2)


def _tiles(height: int, width: int, size: int) -> tuple[int, int]:
    """Rows and columns of tiles, of about the same shape."""
    ratio = width / height
    if width >= height:
        columns = math.ceil(width / size)
        return math.ceil(int(columns * size / ratio) / size) or 1, columns
    rows = math.ceil(height / size)
    return rows, math.ceil(int(rows * size * ratio) / size) or 1


def _square(pixels: Pixels, colour: tuple[int, ...]) -> Pixels:
    height, width = pixels.shape[:2]
    if height == width:
        return pixels
    side = max(height, width)
    ground = np.empty((side, side, 3), np.uint8)
    ground[:] = colour
    top, left = (side - height) // 2, (side - width) // 2
    ground[top : top + height, left : left + width] = pixels
    return ground


def _resize(pixels: Pixels, height: int, width: int, filter_name: str) -> Pixels:
    from PIL import Image as Pillow

    if pixels.shape[:2] == (height, width):
        return pixels
    resample = Pillow.Resampling[filter_name.upper()]
    return np.asarray(Pillow.fromarray(pixels).resize((width, height), resample))
