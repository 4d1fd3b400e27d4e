"""`llama4`, Llama 4: tiles of a canvas that keeps an image's shape, and all of the image in one more tile.

In `transformers`: Llama4ImageProcessorFast, Llama4Processor, Llama4VisionModel, Llama4MultiModalProjector.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from stretto.models.common import positive
from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run, Special
from stretto.vision.spec import Grid, VisionSpec
from stretto.weights.gguf import GGUF

MERGE = 2  # where the file does not say
TILES, MAX_TILES = 16, 64  # at most, where the file does not say, and where it does
ROPE_BASE = 10_000.0


class Llama4(Family):
    """Llama 4 Scout and Maverick."""

    name = "llama4"

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """Three matrices; a class token behind the patches, which are rotated too."""
        merge = base.read_merge(file, "clip.vision.projector.scale_factor", spec, MERGE)
        first, second, last = (
            base.read_outputs(file, f"mm.model.{name}.weight") for name in ("mlp.1", "mlp.2", "fc")
        )
        shapes = {
            "mm.model.mlp.1.weight": (first, spec.n_embd * merge**2),
            "mm.model.mlp.2.weight": (second, first),
            "mm.model.fc.weight": (last, second),
        }
        return replace(
            spec,
            n_out=last,
            merge=merge,
            max_tiles=positive(file, "clip.vision.preproc_max_tiles", TILES, most=MAX_TILES),
            activation="exact_gelu" if spec.activation == "gelu" else spec.activation,
            rope="columns",
            rope_base=ROPE_BASE,
            class_token=True,
            class_last=True,
            flat_patches=True,
            projector_tensors=tuple(shapes.items()),
        )

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """Tiles of the canvas row by row, and last the whole image in one more."""
        size, (height, width) = spec.image_size, pixels.shape[:2]
        rows, columns = _canvas(height, width, spec)
        limits = (min(max(side, size), n * size) for side, n in ((height, rows), (width, columns)))
        canvas = np.zeros((rows * size, columns * size, 3), np.uint8)
        shown = base.resize(pixels, *_fit(height, width, *limits), "bilinear")
        canvas[: shown.shape[0], : shown.shape[1]] = shown
        if rows == columns == 1:
            return Prepared(canvas[None])
        whole = base.resize(pixels, size, size, "bilinear")
        return Prepared(np.concatenate((base.cut(canvas, rows, columns), whole[None])), rows, columns)

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """Squares of patches side by side, two matrices with a GELU behind each, one more."""
        hidden = base.side_by_side(x, grid, run.spec.merge)
        for name in ("mm.model.mlp.1", "mm.model.mlp.2"):
            hidden = run.multiply(hidden, name, "exact_gelu")
        return run.multiply(hidden, "mm.model.fc")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """Tiles with a token between two of a row and one behind each row, then the whole image."""
        n = spec.count_tokens(grid)
        yield Special("<|image_start|>")
        for tile in range(prepared.rows * prepared.columns):
            yield Run(tile * n, (tile + 1) * n)
            ends = (tile + 1) % prepared.columns == 0
            yield Special("<|tile_y_separator|>" if ends else "<|tile_x_separator|>")
        last = len(prepared.tiles) - 1
        yield from (Special("<|image|>"), Run(last * n, (last + 1) * n), Special("<|image_end|>"))


def _canvas(height: int, width: int, spec: VisionSpec) -> tuple[int, int]:
    """Rows and columns of tiles: the least enlargement, or the least reduction; of several the smallest."""
    size, most = spec.image_size, spec.max_tiles
    grids = [(rows, n // rows) for n in range(most, 0, -1) for rows in range(1, n + 1) if n % rows == 0]
    scales = [
        np.float32(min(np.float32(rows * size) / height, np.float32(columns * size) / width))
        for rows, columns in grids
    ]
    enlarging = [scale for scale in scales if scale >= 1]
    best = min(enlarging) if enlarging else max(scales)
    fitting = [grid for grid, scale in zip(grids, scales, strict=True) if scale == best]
    return min(fitting, key=lambda grid: grid[0] * grid[1])


def _fit(height: int, width: int, most_height: int, most_width: int) -> tuple[int, int]:
    """The largest size of the same shape within limits."""
    by_width, by_height = most_width / width, most_height / height
    if by_width < by_height:
        return max(1, min(math.floor(height * by_width), most_height)), most_width
    return most_height, max(1, min(math.floor(width * by_height), most_width))
