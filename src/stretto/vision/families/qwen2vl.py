"""`qwen2vl_merger` and `qwen2.5vl_merger`, Qwen2-VL and Qwen2.5-VL: images of any shape, windows in 2.5.

Image tokens have rows and columns as positions in the language model (M-RoPE).
In `transformers`: Qwen2VLImageProcessorPil, Qwen2VLModel, Qwen2_5_VLModel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from stretto.models.common import positive
from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run, Special
from stretto.vision.spec import Grid, Shape, VisionSpec
from stretto.weights.gguf import GGUF

ROPE_BASE = 10_000.0
MAX_TOKENS = 4096  # of an image
WINDOW_PIXELS = 112  # along each side of a window, where the file does not say
MIN_PIXELS = "clip.vision.image_min_pixels"
PATTERN, WINDOW = "clip.vision.n_wa_pattern", "clip.vision.window_size"


class Qwen2VL(Family):
    """Qwen2-VL."""

    name = "qwen2vl_merger"
    any_size = True
    min_tokens: ClassVar = 4  # of an image, where the file does not say

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """Two matrices over merged patches."""
        spec = replace(
            spec, merge=base.read_merge(file, "clip.vision.spatial_merge_size", spec, 2, any_size=True)
        )
        wide, out = spec.n_embd * spec.merge**2, base.read_outputs(file, "mm.2.weight")
        most = min(MAX_TOKENS, base.read_pixels(file, "clip.vision.image_max_pixels", MAX_TOKENS, spec))
        least = base.read_pixels(file, MIN_PIXELS, min(self.min_tokens, most), spec)
        if least > most:
            raise file.error(MIN_PIXELS, f"{least} tokens at least, and {most} at most")
        return replace(
            spec,
            n_out=out,
            min_tokens=least,
            max_tokens=most,
            class_token=False,
            positions="",
            rope="halves",
            rope_base=ROPE_BASE,
            fused_qkv="v.blk.0.attn_qkv.weight" in file.tensors,
            two_frames=True,
            grid_positions=True,
            projector_tensors=tuple(merger("mm.0", "mm.2", wide, out).items()),
        )

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """About the same number of pixels, within limits, and whole squares of patches."""
        height, width = pixels.shape[:2]
        base.check_ratio(height, width)
        return Prepared(base.resize(pixels, *_size(height, width, spec), "bicubic")[None])

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """Squares of patches side by side, two matrices."""
        merged = base.side_by_side(x, grid, run.spec.merge)
        return run.multiply(run.multiply(merged, "mm.0", "exact_gelu"), "mm.2")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """Between two markers."""
        yield Special("<|vision_start|>")
        yield Run(0, spec.count_tokens(grid), columns=grid[1] // spec.merge)
        yield Special("<|vision_end|>")


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL."""

    name = "qwen2.5vl_merger"

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """RMS norms, and windows in all blocks but every so many."""
        spec = replace(super().read(file, spec), rms_norm=True)
        if PATTERN not in file.metadata:
            return spec
        every = positive(file, PATTERN, most=spec.n_layer)
        unit = spec.patch_size * spec.merge
        side = positive(file, WINDOW, WINDOW_PIXELS, most=1 << 16) // unit
        if not side:
            raise file.error(
                WINDOW, f"a window has to be at least {unit} pixels, the side of a token's square"
            )
        blocks = frozenset(range(every - 1, spec.n_layer, every))
        return replace(spec, window=side * spec.merge, global_blocks=blocks)


def merger(first: str, second: str, wide: int, out: int) -> dict[str, Shape]:
    """The tensors of two matrices that make one vector of a square of patches."""
    shapes: dict[str, Shape] = {f"{first}.weight": (wide, wide), f"{first}.bias": (wide,)}
    return shapes | {f"{second}.weight": (out, wide), f"{second}.bias": (out,)}


def _size(height: int, width: int, spec: VisionSpec) -> tuple[int, int]:
    unit = spec.patch_size * spec.merge
    least, most = spec.min_tokens * unit**2, spec.max_tokens * unit**2
    rows, columns = round(height / unit), round(width / unit)
    if rows * columns * unit**2 > most:
        shrink = math.sqrt(height * width / most)
        rows, columns = (max(1, math.floor(side / shrink / unit)) for side in (height, width))
    elif rows * columns * unit**2 < least:
        grow = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(side * grow / unit) for side in (height, width))
    return rows * unit, columns * unit
