"""`internvl`, InternVL 2.5 and later: tiles in the grid nearest to an image's shape, and all of it at once.

In `transformers`: GotOcr2ImageProcessorPil (crop_to_patches), InternVLMultiModalProjector.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from stretto.models.common import positive
from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run, Special
from stretto.vision.spec import Grid, Shape, VisionSpec
from stretto.weights.gguf import GGUF

MERGE = 2  # where the file does not say
TILES = 12  # at most, where the file does not say
MAX_TILES = 64
PROJECTOR_EPS = 1e-5
LEAST, MOST = "clip.vision.preproc_min_tiles", "clip.vision.preproc_max_tiles"


class InternVL(Family):
    """InternVL and InternS1."""

    name = "internvl"

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """A norm and two matrices; the largest encoder has other norms, also of Q and K."""
        merge = base.read_merge(file, "clip.vision.projector.scale_factor", spec, MERGE)
        most = positive(file, MOST, TILES, most=MAX_TILES)
        least = positive(file, LEAST, 1, most=MAX_TILES)
        if least > most:
            raise file.error(LEAST, f"{least} tiles at least, and {most} at most")
        wide, out = spec.n_embd * merge**2, base.read_outputs(file, "mm.model.mlp.1.weight")
        shapes: dict[str, Shape] = {"mm.model.mlp.0.weight": (wide,), "mm.model.mlp.0.bias": (wide,)}
        shapes |= {"mm.model.mlp.1.weight": (out, wide), "mm.model.mlp.1.bias": (out,)}
        shapes |= {"mm.model.mlp.3.weight": (out, out), "mm.model.mlp.3.bias": (out,)}
        return replace(
            spec,
            n_out=out,
            merge=merge,
            min_tiles=least,
            max_tiles=most,
            activation="exact_gelu" if spec.activation == "gelu" else spec.activation,
            rms_norm="v.blk.0.ln1.bias" not in file.tensors,
            qk_norm="all" if "v.blk.0.attn_q_norm.weight" in file.tensors else "",
            layer_scale="v.blk.0.ls1.weight" in file.tensors,
            projector_tensors=tuple(shapes.items()),
        )

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """Tiles row by row, and last the whole image in one more."""
        size = spec.image_size
        rows, columns = _tiles(pixels.shape[0], pixels.shape[1], spec)
        split = base.resize(pixels, rows * size, columns * size, "bicubic")
        if rows == columns == 1:
            return Prepared(split[None])
        whole = base.resize(pixels, size, size, "bicubic")
        return Prepared(np.concatenate((base.cut(split, rows, columns), whole[None])), rows, columns)

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """Squares of patches side by side, a norm, two matrices."""
        merged = run.norm(base.side_by_side(x, grid, run.spec.merge), "mm.model.mlp.0", PROJECTOR_EPS)
        return run.multiply(run.multiply(merged, "mm.model.mlp.1", "exact_gelu"), "mm.model.mlp.3")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """All tiles between two markers."""
        n = spec.count_tokens(grid)
        yield Special("<img>")
        yield from (Run(tile * n, (tile + 1) * n) for tile in range(len(prepared.tiles)))
        yield Special("</img>")


def _tiles(height: int, width: int, spec: VisionSpec) -> tuple[int, int]:
    """Rows and columns of the grid whose shape is nearest; of two the larger, unless it is far too large."""
    sizes = range(1, spec.max_tiles + 1)
    grids = [(w, h) for w in sizes for h in sizes if spec.min_tiles <= w * h <= spec.max_tiles]
    ratio, best, least = width / height, (1, 1), float("inf")
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        off = abs(ratio - columns / rows)
        large = 2 * width * height > spec.image_size**2 * columns * rows
        if off < least or (off == least and large):
            best, least = (rows, columns), off
    return best
