"""`pixtral`, Pixtral and Mistral 3: images of any shape, rotated by rows and columns; a token ends each row.

In `transformers`: PixtralImageProcessorPil, PixtralProcessor, Mistral3MultiModalProjector.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run, Special
from stretto.vision.spec import Grid, VisionSpec
from stretto.weights.gguf import GGUF

ROPE_BASE = 10_000.0
MERGER = "mm.patch_merger.weight"


class Pixtral(Family):
    """Pixtral, Mistral Small 3.1 and later, Ministral 3."""

    name = "pixtral"
    any_size = True

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """Two matrices; before them, in Mistral 3, a norm and a matrix that merges squares of patches."""
        merge, n = 1, spec.n_embd
        if MERGER in file.tensors:
            merge = base.read_merge(file, "clip.vision.spatial_merge_size", spec, 2, any_size=True)
        out = base.read_outputs(file, "mm.1.weight")
        shapes = {
            "mm.1.weight": (out, n),
            "mm.1.bias": (out,),
            "mm.2.weight": (out, out),
            "mm.2.bias": (out,),
        }
        if MERGER in file.tensors:
            shapes |= {"mm.input_norm.weight": (n,), MERGER: (n, n * merge**2)}
        side = math.ceil(spec.image_size / (spec.patch_size * merge))
        return replace(
            spec,
            n_out=out,
            merge=merge,
            longest_edge=spec.image_size,
            max_tokens=side**2,
            positions="",
            rope="adjacent",
            rope_base=ROPE_BASE,
            rms_norm=True,
            projector_tensors=base.optional(file, shapes, "mm.1.bias", "mm.2.bias"),
        )

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """No larger than the longest edge, and whole squares of patches."""
        height, width = pixels.shape[:2]
        ratio = max(height, width) / spec.longest_edge
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        unit = spec.patch_size * spec.merge
        height, width = (max(1, math.ceil(side / unit)) * unit for side in (height, width))
        return Prepared(base.resize(pixels, height, width, "bicubic")[None])

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """Squares are merged channel by channel."""
        if run.spec.merge > 1 or any(name == MERGER for name, _ in run.spec.projector_tensors):
            parts = base.squares(run.norm(x, "mm.input_norm"), grid, run.spec.merge).swapaxes(2, 3)
            x = run.multiply(parts.reshape(*parts.shape[:2], -1), "mm.patch_merger")
        return run.multiply(run.multiply(x, "mm.1", "exact_gelu"), "mm.2")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """A token behind each row, another one behind the last."""
        rows, columns = grid[0] // spec.merge, grid[1] // spec.merge
        for row in range(rows):
            yield Run(row * columns, (row + 1) * columns)
            yield Special("[IMG_BREAK]" if row < rows - 1 else "[IMG_END]")
