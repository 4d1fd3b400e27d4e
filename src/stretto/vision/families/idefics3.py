"""`idefics3`, SmolVLM and SmolVLM 2: large images in tiles; squares of patches side by side, then one matrix.

In `transformers`: Idefics3ImageProcessorPil, SmolVLMImageProcessorPil.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from stretto.models.common import positive
from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run, Special, Text
from stretto.vision.spec import Grid, VisionSpec
from stretto.weights.gguf import GGUF

MERGE = 2  # where the file does not say
TILES = 4  # along the longest edge, where the file does not say
MAX_TILES = 32  # along the longest edge
MAX_IMAGE_PIXELS = 1 << 13  # along it
MATRIX = "mm.model.fc.weight"


class Idefics3(Family):
    """Idefics 3 and SmolVLM."""

    name = "idefics3"

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """One matrix, and the edge to which images are resized."""
        merge = base.read_merge(file, "clip.vision.projector.scale_factor", spec, MERGE)
        size = spec.image_size
        most = min(MAX_IMAGE_PIXELS, MAX_TILES * size)
        longest = positive(file, "clip.vision.preproc_image_size", TILES * size, most=most)
        out = base.read_outputs(file, MATRIX)
        shapes = ((MATRIX, (out, spec.n_embd * merge**2)),)
        return replace(spec, n_out=out, merge=merge, longest_edge=longest, projector_tensors=shapes)

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """Resized until the longest edge fits, then to whole tiles; last all of it in one more tile."""
        size = spec.image_size
        height, width = _even(pixels.shape[0], pixels.shape[1], spec.longest_edge)
        pixels = base.resize(pixels, height, width, "lanczos")
        rows, columns = _tiles(height, width, size)
        pixels = base.resize(pixels, rows * size, columns * size, "lanczos")
        if rows == columns == 1:
            return Prepared(pixels[None])
        whole = base.resize(pixels, size, size, "lanczos")
        return Prepared(np.concatenate((base.cut(pixels, rows, columns), whole[None])), rows, columns)

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """One matrix."""
        return run.multiply(base.side_by_side(x, grid, run.spec.merge), "mm.model.fc")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """For each tile a token with its row and column, then the whole image."""
        n, around = spec.count_tokens(grid), Special("<fake_token_around_image>")
        for row in range(prepared.rows):
            for column in range(prepared.columns):
                tile = row * prepared.columns + column
                yield from (around, Special(f"<row_{row + 1}_col_{column + 1}>"))
                yield Run(tile * n, (tile + 1) * n)
            yield Text("\n\n" if row == prepared.rows - 1 else "\n")
        last = len(prepared.tiles) - 1
        yield from (around, Special("<global-img>"), Run(last * n, (last + 1) * n), around)


def _even(height: int, width: int, edge: int) -> tuple[int, int]:
    """A size of the same shape whose longest edge is `edge`; the other is rounded up to an even number."""
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
