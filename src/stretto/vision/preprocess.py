"""From an image to the patches that an encoder takes, as the models' own processors do it (`families/`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.vision.decode import Pixels
from stretto.vision.families import FAMILIES
from stretto.vision.image import Image
from stretto.vision.resizing import Prepared, fit, resize
from stretto.vision.spec import Grid, VisionSpec

Floats = NDArray[np.float32]

MAX_EDGE_PIXELS = 4096  # a larger image is scaled down before anything else


def prepare(image: Image, spec: VisionSpec) -> Prepared:
    """The tiles of an image, resized but not yet normalised."""
    pixels = image.pixels
    if max(pixels.shape[:2]) > MAX_EDGE_PIXELS:
        height, width = fit(pixels.shape[0], pixels.shape[1], MAX_EDGE_PIXELS)
        pixels = resize(pixels, height, width, "box")
    return FAMILIES[spec.projector].prepare(pixels, spec)


def grid_of(tiles: Pixels, spec: VisionSpec) -> Grid:
    """Rows and columns of patches of each of some tiles."""
    return tiles.shape[-3] // spec.patch_size, tiles.shape[-2] // spec.patch_size


def normalise(tiles: Pixels, spec: VisionSpec) -> Floats:
    """float32[n, patches, 3 × patch × patch]: patches row by row, each channel by channel."""
    n, (rows, columns), patch = len(tiles), grid_of(tiles, spec), spec.patch_size
    scaled: Floats = tiles.astype(np.float32) * np.float32(1 / 255)
    scaled -= np.array(spec.mean, np.float32)
    scaled /= np.array(spec.std, np.float32)
    parts = scaled.reshape(n, rows, patch, columns, patch, 3)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 5, 2, 4)).reshape(n, rows * columns, -1)
