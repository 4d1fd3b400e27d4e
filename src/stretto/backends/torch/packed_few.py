"""A few rows times packed weights by a CUDA C++ kernel (kernels/few.cu): the bits of all other products."""

from __future__ import annotations

from ctypes import c_int, c_long, c_void_p

import torch

from stretto.backends.torch import nvrtc
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.layouts import PARTS, Packed
from stretto.backends.torch.packed_gemv import TYPES, address, tiles_and_processors, weights_of

SHARED_BYTES = 96 << 10  # for x, of a block
Shape = tuple[int, int]  # steps in a batch, blocks of a multiprocessor
VARIANTS: tuple[Shape, ...] = ((4, 4), (4, 6), (8, 4))


def fits(x: Tensor, part: Packed, act: int) -> bool:
    """Whether the kernel can multiply these rows."""
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and len(x) <= 8
        and act <= 1
        and _shared_bytes(len(x), part) <= SHARED_BYTES
        and nvrtc.is_available()
    )


def few(
    x: Tensor,
    part: Packed,
    out: Tensor,
    bias: Tensor | None,
    act: int,
    gated: bool,
    *,
    shape: Shape = VARIANTS[0],
    early: bool = True,
) -> None:
    """Write the product of bfloat16 x[n, columns], n up to 8, with a part into `out`."""
    x = x.contiguous()
    batch, resident = shape
    constants = {
        "FORMAT": part.layout.code, "K": part.columns, "N": part.rows, "STEPS": part.part // part.layout.step,
        "SLICES": 1, "U": batch, "RESIDENT": resident, "ROWS": _rows(len(x)), "OUT": TYPES[out.dtype],
        "BIAS": int(bias is not None), "GATED": int(gated), "ACT": act, "AHEAD": 1,
    }  # fmt: skip
    kernel = nvrtc.load("few.cu", "few", constants, x.device)
    arguments = (
        c_void_p(address(x)), c_int(len(x)), weights_of(part), c_void_p(address(bias)),
        c_void_p(address(out)), c_long(out.stride(0)),
    )  # fmt: skip
    tiles, processors = tiles_and_processors(part, x.device)
    blocks = min(tiles, resident * processors)
    kernel.launch(blocks, 32 * PARTS, _shared_bytes(len(x), part), arguments, early=early)


def _rows(n: int) -> int:
    return next(each for each in (1, 2, 4, 8) if each >= n)


def _shared_bytes(n: int, part: Packed) -> int:
    return 2 * _rows(n) * PARTS * part.part if n <= 8 else SHARED_BYTES + 1
