"""`qwen3vl_merger`, Qwen3-VL and Qwen3.5: positions of any grid, and results of early blocks (deepstack).

Image tokens have rows and columns as positions in the language model (M-RoPE).
In `transformers`: Qwen2VLImageProcessorPil, Qwen3VLVisionModel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from stretto.errors import InvalidRequest
from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run, Special
from stretto.vision.spec import Grid, Shape, VisionSpec
from stretto.weights.gguf import GGUF

ROPE_BASE = 10_000.0
MIN_TOKENS, MAX_TOKENS = 64, 4096  # of an image, where the file does not say
MAX_RATIO = 200  # of the longer side to the shorter
DEEPSTACK = "clip.vision.is_deepstack_layers"


class Qwen3VL(Family):
    """Qwen3-VL and Qwen3.5."""

    name = "qwen3vl_merger"
    any_size = True

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """Two matrices over merged patches, and as much again for each block whose result is used."""
        spec = replace(
            spec, merge=base.read_merge(file, "clip.vision.spatial_merge_size", spec, 2, any_size=True)
        )
        wide, out = spec.n_embd * spec.merge**2, base.read_outputs(file, "mm.2.weight")
        taps = self._taps(file, spec.n_layer)
        shapes: dict[str, Shape] = _merger("mm.0", "mm.2", wide, out)
        for i in taps:
            norm = f"v.deepstack.{i}.norm"
            shapes |= {f"{norm}.weight": (wide,), f"{norm}.bias": (wide,)}
            shapes |= _merger(f"v.deepstack.{i}.fc1", f"v.deepstack.{i}.fc2", wide, out)
        return replace(
            spec,
            n_out=out,
            min_tokens=base.read_pixels(file, "clip.vision.image_min_pixels", MIN_TOKENS, spec),
            max_tokens=min(
                MAX_TOKENS, base.read_pixels(file, "clip.vision.image_max_pixels", MAX_TOKENS, spec)
            ),
            positions="bilinear",
            position_shape=_square_table(file, spec.n_embd),
            rope="halves",
            rope_base=ROPE_BASE,
            fused_qkv="v.blk.0.attn_qkv.weight" in file.tensors,
            two_frames=True,
            deepstack=taps,
            grid_positions=True,
            projector_tensors=tuple(shapes.items()),
        )

    def _taps(self, file: GGUF, n_layer: int) -> tuple[int, ...]:
        if DEEPSTACK not in file.metadata:
            return ()
        flags = file.metadata.array(DEEPSTACK)
        if flags.shape != (n_layer,):
            message = f"a flag for each of {n_layer} blocks is needed, not {flags.shape}"
            raise file.error(DEEPSTACK, message)
        return tuple(i for i, flag in enumerate(flags.tolist()) if flag)

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """About the same number of pixels, within limits, and whole squares of patches."""
        height, width = pixels.shape[:2]
        if max(height, width) > MAX_RATIO * min(height, width):
            raise InvalidRequest(
                f"an image of {width} × {height}: one side is over {MAX_RATIO} times the other; cut it",
                param="image",
            )
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


def deepstack(run: Operations, block: int, x: Floats, grid: Grid) -> Floats:
    """[n, patches, n_embd] → [n, tokens, n_out]: what the language model adds behind an early layer."""
    name = f"v.deepstack.{block}"
    merged = run.norm(base.side_by_side(x, grid, run.spec.merge), f"{name}.norm")
    return run.multiply(run.multiply(merged, f"{name}.fc1", "exact_gelu"), f"{name}.fc2")


def _merger(first: str, second: str, wide: int, out: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{first}.weight": (wide, wide), f"{first}.bias": (wide,)}
    return shapes | {f"{second}.weight": (out, wide), f"{second}.bias": (out,)}


def _square_table(file: GGUF, n_embd: int) -> Shape:
    name = "v.position_embd.weight"
    tensor = file.tensors.get(name)
    n = 0 if tensor is None or len(tensor.shape) != 2 else tensor.shape[0]
    if not n or math.isqrt(n) ** 2 != n:
        raise file.error(f"tensor {name!r}", "a square table of positions is needed")
    return n, n_embd


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
