"""One row times packed weights by whole numbers (kernels/gemv.cu): for `exact=False`.

The row is rounded to 8 bits for each 32 columns, as llama.cpp does on CPUs. Norm before, and gate × up or the
residual sum behind, are in the same kernel.
"""

from __future__ import annotations

from ctypes import c_float, c_void_p
from typing import Any

import torch

from stretto.backends.torch import nvrtc
from stretto.backends.torch.device import Tensor, multiprocessors
from stretto.backends.torch.layouts import PARTS, TILE_ROWS, Packed

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
WRITE, ADD, GATE = 0, 1, 2  # what happens with the product
Shape = tuple[int, int, int]  # slices of a part, steps in a batch, blocks of a multiprocessor


def gemv(
    x: Tensor,
    part: Packed,
    out: Tensor,
    *,
    gain: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    then: int = WRITE,
    act: int = 0,
    shape: Shape | None = None,
    ahead: bool = True,
    early: bool = True,
) -> None:
    """Write the product of x[1, columns] with a part into `out`, or add it there."""
    slices, batch, resident = shape or best_shape(part)
    constants = {
        "FORMAT": part.layout.code, "K": part.columns, "N": part.rows, "STEPS": part.part // part.layout.step,
        "SLICES": slices, "U": batch, "RESIDENT": resident, "X": TYPES[x.dtype], "OUT": TYPES[out.dtype],
        "NORM": int(gain is not None), "BIAS": int(bias is not None), "THEN": then, "ACT": act,
        "AHEAD": int(ahead),
    }  # fmt: skip
    kernel = nvrtc.load("gemv.cu", "gemv", constants, x.device)
    arguments = (
        c_void_p(address(x)), c_void_p(address(gain)), weights_of(part), c_void_p(address(bias)),
        c_void_p(address(out)), c_float(eps),
    )  # fmt: skip
    tiles, processors = tiles_and_processors(part, x.device)
    blocks = min(tiles, resident * processors)
    kernel.launch(blocks, 32 * PARTS * slices, 2 * PARTS * part.part, arguments, early=early)


def best_shape(part: Packed) -> Shape:
    """Slices, steps in a batch, and blocks of a multiprocessor for a part."""
    steps = part.part // part.layout.step
    slices = max(each for each in (1, 2, 4) if each == 1 or steps // each >= 4)
    return slices, 4, 4 // slices


def weights_of(part: Packed) -> Any:
    """The addresses of a part's tensors, as kernels take them."""
    tensors = (part.quants, part.high, part.scales, part.minima, part.supers)
    return (c_void_p * len(tensors))(*(address(each) for each in tensors))


def tiles_and_processors(part: Packed, device: Any) -> tuple[int, int]:
    """How many tiles of rows there are, and multiprocessors to walk them."""
    return -(-part.rows // TILE_ROWS), multiprocessors(device)


def address(tensor: Tensor | None) -> int:
    """Where a tensor is; 0 if there is none."""
    return 0 if tensor is None else int(tensor.data_ptr())
