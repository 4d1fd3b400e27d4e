"""Products of experts: blocks of pairs (a row and one of its experts) that have the same expert."""

import torch
import triton
import triton.language as tl

from stretto.backends.torch.kernels import dense, packed, widen
from stretto.backends.torch.kernels.parts import arguments, constants, fastest
from stretto.backends.torch.launching import launch
from stretto.backends.torch.layouts import PARTS, Packed

ALONE = 64  # up to so many pairs each is a block: no sorting, and a matrix is rarely read twice
CLAMPED = 6  # the code of the clamped SwiGLU


def block_rows(pairs, n_expert):
    """Rows of a block, from how many pairs an expert has on average."""
    mean = pairs / n_expert
    return 16 if mean <= 16 else 32 if mean <= 64 else 64


def product(x, stack, assignment, out, bias, act, clamp):
    """Each row times its experts' matrices, written into `out`."""
    x = x.contiguous()
    pairs = len(out)
    gated = stack.interleaved and act > 0
    limit, alpha = clamp or (0.0, 0.0)
    act = CLAMPED if clamp else act
    each = 1 if len(x) == pairs else assignment.used
    if pairs > ALONE:
        mode, size = 1, block_rows(pairs, stack.n_expert)
        experts, places = assignment.blocks(size)
    else:
        mode, size = 2, 8 if isinstance(stack.part, Packed) and x.dtype != torch.float32 else 16
        experts = places = assignment.chosen.reshape(-1)
    biased = out if bias is None else bias
    part, n, k = stack.part, stack.rows, stack.columns
    if isinstance(part, Packed) and x.dtype != torch.float32:
        nt, fast = 2, fastest(part, x.dtype)
        launch(
            packed.fused, (triton.cdiv(n, 16 * nt), len(experts)),
            x, *arguments(part), biased, out, experts, places,
            pairs, n, k, part.part, out.stride(0), each, limit, alpha,
            **constants(part), NT=nt, BM=size, EVEN=k == PARTS * part.part, ACT=act, GATED=gated,
            BIAS=bias is not None, GROUPED=mode, FAST=fast, num_warps=4, num_stages=4,
        )  # fmt: skip
        return
    parts, columns = 1, k
    if isinstance(part, Packed):
        parts, columns = PARTS, part.part
        w = _widened(stack, x.dtype)
    else:
        w = part.weight
    bn, bk, stages = (32, 32, 2) if x.dtype == torch.float32 else (64, 128 if size < 64 else 64, 4)
    launch(
        dense.few, (triton.cdiv(n, bn), len(experts)),
        x, w, biased, out, experts, places, pairs, n, k, columns, out.stride(0), each, limit, alpha,
        BM=size, BN=bn, BK=bk, PARTS=parts, EVEN=k % bk == 0 and columns % bk == 0, ACT=act, GATED=gated,
        BIAS=bias is not None, GROUPED=mode, PRECISION="ieee", num_warps=4, num_stages=stages,
    )  # fmt: skip


def _widened(stack, dtype):
    """All experts' weights in a wide type: for precision="high", where memory is no concern."""
    w = widen.some(stack.part, 0, stack.part.rows, dtype)
    return w.view(stack.n_expert, stack.stride, -1)[:, : stack.rows].contiguous()


@triton.jit
def mix(y, weights, out, width, USED: tl.constexpr, B: tl.constexpr):
    """out[n] = the weighted sum of rows n × USED and following, in their order."""
    n = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * B + tl.arange(0, B)
    inside = k < width
    total = tl.zeros([B], tl.float32)
    for i in tl.static_range(USED):
        v = tl.load(y + (n * USED + i) * width + k, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(weights + n * USED + i) * v
    tl.store(out + n * width + k, total, mask=inside)


def mixture(y, weights):
    """The weighted sum of the experts' outputs, in the order of choice: float32[n, n_embd]."""
    n, used = weights.shape
    width = y.shape[1]
    out = torch.empty(n, width, dtype=torch.float32, device=y.device)
    launch(
        mix,
        (n, triton.cdiv(width, 512)),
        y.contiguous(),
        weights.contiguous(),
        out,
        width,
        USED=used,
        B=512,
        num_warps=4,
    )
    return out
