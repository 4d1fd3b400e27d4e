"""`mlp`, LLaVA 1.5: an image is padded to a square; each patch through two matrices.

In `transformers`: LlavaImageProcessorPil (do_pad).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run
from stretto.vision.spec import Grid, VisionSpec
from stretto.weights.gguf import GGUF


class Llava(Family):
    """LLaVA 1.5."""

    name = "mlp"

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """Two matrices with biases."""
        out = base.read_outputs(file, "mm.0.weight")
        shapes = {"mm.0.weight": (out, spec.n_embd), "mm.0.bias": (out,)}
        shapes |= {"mm.2.weight": (out, out), "mm.2.bias": (out,)}
        return replace(spec, n_out=out, projector_tensors=tuple(shapes.items()))

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """A square with the mean colour around the image."""
        colour = tuple(int(255 * part) for part in spec.mean)
        size = spec.image_size
        return Prepared(base.resize(_square(pixels, colour), size, size, "bicubic")[None])

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """Two matrices with an exact GELU between them."""
        return run.multiply(run.multiply(x, "mm.0", "exact_gelu"), "mm.2")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """The tokens alone."""
        yield Run(0, spec.count_tokens(grid))


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
