"""`gemma3`: the mean over squares of patches, a norm, one matrix; an image's tokens attend to each other.

In `transformers`: Gemma3ImageProcessorPil.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run, Special, Text
from stretto.vision.spec import Grid, VisionSpec
from stretto.weights.gguf import GGUF

MERGE = 4  # where the file does not say
MATRIX = "mm.input_projection.weight"


class Gemma3(Family):
    """Gemma 3."""

    name = "gemma3"

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """A norm and a matrix, which the file has transposed."""
        merge = base.read_merge(file, "clip.vision.projector.scale_factor", spec, MERGE)
        out = base.read_outputs(file, MATRIX, axis=1)
        shapes = {"mm.soft_emb_norm.weight": (spec.n_embd,), MATRIX: (spec.n_embd, out)}
        return replace(
            spec,
            n_out=out,
            merge=merge,
            bidirectional=True,
            transposed=frozenset({MATRIX}),
            projector_tensors=tuple(shapes.items()),
        )

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """A square, whatever the image's shape."""
        return Prepared(base.resize(pixels, spec.image_size, spec.image_size, "bilinear")[None])

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """The mean of each square."""
        pooled = base.squares(x, grid, run.spec.merge).mean(axis=2)
        return run.multiply(run.norm(pooled, "mm.soft_emb_norm"), "mm.input_projection")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """Between two markers and line breaks."""
        yield from (Text("\n\n"), Special("<start_of_image>"))
        yield Run(0, spec.count_tokens(grid))
        yield from (Special("<end_of_image>"), Text("\n\n"))
