"""`qwen3vl_merger`, Qwen3-VL and Qwen3.5: positions of any grid, and results of early blocks (deepstack).

In `transformers`: Qwen2VLImageProcessorPil, Qwen3VLVisionModel.
"""

from __future__ import annotations

import math
from dataclasses import replace

from stretto.vision.families import base
from stretto.vision.families.base import Floats, Operations
from stretto.vision.families.qwen2vl import Qwen2VL, merger
from stretto.vision.spec import Grid, Shape, VisionSpec
from stretto.weights.gguf import GGUF

DEEPSTACK = "clip.vision.is_deepstack_layers"


class Qwen3VL(Qwen2VL):
    """Qwen3-VL and Qwen3.5."""

    name = "qwen3vl_merger"
    min_tokens = 64

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """A table of positions, and a projector more for each block whose result is used."""
        spec = super().read(file, spec)
        wide, taps = spec.n_embd * spec.merge**2, _taps(file, spec.n_layer)
        shapes: dict[str, Shape] = dict(spec.projector_tensors)
        for i in taps:
            norm = f"v.deepstack.{i}.norm"
            shapes |= {f"{norm}.weight": (wide,), f"{norm}.bias": (wide,)}
            shapes |= merger(f"v.deepstack.{i}.fc1", f"v.deepstack.{i}.fc2", wide, spec.n_out)
        return replace(
            spec,
            positions="bilinear",
            position_shape=_square_table(file, spec.n_embd),
            deepstack=taps,
            projector_tensors=tuple(shapes.items()),
        )


def deepstack(run: Operations, block: int, x: Floats, grid: Grid) -> Floats:
    """[n, patches, n_embd] → [n, tokens, n_out]: what the language model adds behind an early layer."""
    name = f"v.deepstack.{block}"
    merged = run.norm(base.side_by_side(x, grid, run.spec.merge), f"{name}.norm")
    return run.multiply(run.multiply(merged, f"{name}.fc1", "exact_gelu"), f"{name}.fc2")


def _taps(file: GGUF, n_layer: int) -> tuple[int, ...]:
    if DEEPSTACK not in file.metadata:
        return ()
    flags = file.metadata.array(DEEPSTACK)
    if flags.shape != (n_layer,):
        message = f"a flag for each of {n_layer} blocks is needed, not {flags.shape}"
        raise file.error(DEEPSTACK, message)
    return tuple(i for i, flag in enumerate(flags.tolist()) if flag)


def _square_table(file: GGUF, n_embd: int) -> Shape:
    name = "v.position_embd.weight"
    tensor = file.tensors.get(name)
    n = 0 if tensor is None or len(tensor.shape) != 2 else tensor.shape[0]
    if not n or math.isqrt(n) ** 2 != n:
        raise file.error(f"tensor {name!r}", "a square table of positions is needed")
    return n, n_embd
