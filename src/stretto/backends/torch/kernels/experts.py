"""Products of experts: blocks of pairs (a row and one of its experts) that have the same expert."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from stretto.backends.torch import octets
from stretto.backends.torch.kernels import dense, packed
from stretto.backends.torch.kernels.packed import arguments, constants, fastest
from stretto.backends.torch.launching import launch
from stretto.backends.torch.layouts import PARTS, Packed
from stretto.models.feed_forward import Routing

ALONE = 64  # up to so many pairs each is a block: no sorting, and a matrix is rarely read twice
CLAMPED = 6  # the code of the clamped SwiGLU


def block_rows(pairs, n_expert):
    """Rows of a block, from how many pairs an expert has on average."""
    mean = pairs / n_expert
    return 16 if mean <= 16 else 32 if mean <= 64 else 64


def octet_rows(pairs, n_expert):
    """Rows of a block whose rows are rounded to 8 bits."""
    mean = pairs / n_expert
    return 8 if mean <= 4 else 16 if mean <= 16 else 32


def product(x, stack, assignment, out, bias, act, clamp):
    """Each row times its experts' matrices, written into `out`."""
    x = x.contiguous()
    pairs = len(out)
    gated = stack.interleaved and act > 0
    limit, alpha = clamp or (0.0, 0.0)
    act = CLAMPED if clamp else act
    each = 1 if len(x) == pairs else assignment.used
    if isinstance(stack.part, Packed) and octets.multiplies(x, stack.part):
        how = out, bias, act, gated
        if pairs <= min(ALONE, stack.n_expert):
            chosen = octets.Chosen(stack.rows, assignment.chosen.reshape(-1), None, each)
            octets.few(x, stack.part, *how, chosen=chosen, clamp=(limit, alpha))
        else:
            experts, places = assignment.blocks(octet_rows(pairs, stack.n_expert))
            chosen = octets.Chosen(stack.rows, experts, places, each)
            rounded = octets.round_rows(x, stack.part)
            octets.many(rounded, stack.part, *how, chosen=chosen, clamp=(limit, alpha))
        return
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
    w = packed.some(stack.part, 0, stack.part.rows, dtype)
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
    grid = (n, triton.cdiv(width, 512))
    launch(mix, grid, y.contiguous(), weights.contiguous(), out, width, USED=used, B=512, num_warps=4)
    return out


# The choice of experts, and the blocks of pairs (a row and one of its experts) that have the same one.

KINDS = {"softmax": 0, "sigmoid": 1, "chosen": 2}
NEVER = tl.constexpr(float("-inf"))
CHUNK = 1024  # pairs that a program looks at together


@triton.jit
def pick_best(order, ids, N: tl.constexpr):
    """The largest number and its id, the lower one of equals."""
    top = tl.max(order, 0)
    return top, tl.minimum(tl.min(tl.where(order == top, ids, N - 1), 0), N - 1)


@triton.jit
def within_groups(
    order, ids, N: tl.constexpr, GROUPS: tl.constexpr, GROUPS_USED: tl.constexpr, GROUP_BEST: tl.constexpr,
    GP: tl.constexpr,
):  # fmt: skip
    """Numbers of experts, −inf outside the best groups, by the sum of each group's best ones."""
    SIZE: tl.constexpr = N // GROUPS
    g = tl.arange(0, GP)
    sums = tl.full([GP], NEVER, tl.float32)
    for group in tl.static_range(GROUPS):
        mine = tl.where(ids // SIZE == group, order, NEVER)
        total, at = pick_best(mine, ids, N)
        for _ in tl.static_range(GROUP_BEST - 1):
            mine = tl.where(ids == at, NEVER, mine)
            more, at = pick_best(mine, ids, N)
            total += more
        sums = tl.where(g == group, total, sums)
    kept = ids < 0
    for _ in tl.static_range(GROUPS_USED):
        total, group = pick_best(sums, g, GROUPS)
        kept = kept | (ids // SIZE == group)
        sums = tl.where(g == group, NEVER, sums)
    return tl.where(kept, order, NEVER)


@triton.jit
def choose(
    scores, correction, chosen, weights, stride, scale,
    N: tl.constexpr, NP: tl.constexpr, USED: tl.constexpr, UP: tl.constexpr, KIND: tl.constexpr,
    NORMALIZE: tl.constexpr, CORRECTED: tl.constexpr, GROUPS: tl.constexpr, GROUPS_USED: tl.constexpr,
    GROUP_BEST: tl.constexpr, GP: tl.constexpr,
):  # fmt: skip
    """A row's experts int32[USED], best first, and their weights. KIND is a number of `KINDS`."""
    row = tl.program_id(0).to(tl.int64)
    ids = tl.arange(0, NP)
    ok = ids < N
    p = tl.load(scores + row * stride + ids, mask=ok, other=NEVER).to(tl.float32)
    if KIND == 0:
        p = tl.exp(p - tl.max(p, 0))
        p = p / tl.sum(p, 0)
    elif KIND == 1:
        p = 1.0 / (1.0 + tl.exp(-p))
    order = p
    if CORRECTED:
        order += tl.load(correction + ids, mask=ok, other=0.0)
    order = tl.where(ok, order, NEVER)
    if GROUPS > 1:
        order = within_groups(order, ids, N, GROUPS, GROUPS_USED, GROUP_BEST, GP)
    k = tl.arange(0, UP)
    experts = tl.zeros([UP], tl.int32)
    found = tl.full([UP], NEVER, tl.float32)
    for i in tl.static_range(USED):
        weight, at = pick_best(order, ids, N)
        if CORRECTED:
            weight = tl.sum(tl.where(ids == at, p, 0.0), 0)  # one number and zeros
        experts = tl.where(k == i, at, experts)
        found = tl.where(k == i, weight, found)
        order = tl.where(ids == at, NEVER, order)
    if KIND == 2:
        found = tl.exp(found - tl.max(found, 0))
        found = found / tl.sum(found, 0)
    found = tl.where(k < USED, found, 0.0)
    if NORMALIZE:
        found = found / tl.sum(found, 0)
    tl.store(chosen + row * USED + k, experts, mask=k < USED)
    tl.store(weights + row * USED + k, found * scale, mask=k < USED)


@triton.jit(do_not_specialize=["n_pairs", "most"])
def divide(
    chosen, experts, pairs, n_pairs, most,
    N: tl.constexpr, NP: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The blocks of one expert, in the order of its pairs, behind those of lower experts; −1: no pair."""
    expert = tl.program_id(0)
    i = tl.arange(0, CHUNK)
    counts = tl.zeros([NP], tl.int32)
    for first in range(0, n_pairs, CHUNK):
        its = tl.load(chosen + first + i, mask=first + i < n_pairs, other=N)
        counts += tl.histogram(its, NP)
    ids = tl.arange(0, NP)
    blocks = tl.where(ids < N, (counts + SIZE - 1) // SIZE, 0)
    begin = tl.sum(tl.where(ids < expert, blocks, 0), 0)
    mine = tl.sum(tl.where(ids == expert, blocks, 0), 0)
    total = tl.sum(blocks, 0)
    seen = begin * SIZE
    for first in range(0, n_pairs, CHUNK):
        its = tl.load(chosen + first + i, mask=first + i < n_pairs, other=N)
        has = (its == expert).to(tl.int32)
        tl.store(pairs + seen + tl.cumsum(has, 0) - 1, first + i, mask=has > 0)
        seen += tl.sum(has, 0)
    b = tl.arange(0, SIZE)
    tl.store(pairs + seen + b, -1 + 0 * b, mask=seen + b < (begin + mine) * SIZE)
    for block in range(begin, begin + mine):
        tl.store(experts + block, expert)
    for block in range(total + expert, most, N):  # blocks that no expert has
        tl.store(experts + block, -1)
        tl.store(pairs + block * SIZE + b, -1 + 0 * b)


def route(routing: Routing, scores: Any, correction: Any) -> tuple[Any, Any]:
    """As `stretto.backends.torch.feed_layer.route` says."""
    n, n_expert = scores.shape
    chosen = torch.empty((n, routing.n_used), dtype=torch.int32, device=scores.device)
    weights = torch.empty((n, routing.n_used), dtype=torch.float32, device=scores.device)
    if not n:
        return chosen, weights
    scores = scores if scores.stride(1) == 1 else scores.contiguous()
    choose[(n,)](
        scores, scores if correction is None else correction, chosen, weights, scores.stride(0),
        float(routing.scale), n_expert, triton.next_power_of_2(n_expert), routing.n_used,
        triton.next_power_of_2(routing.n_used), KINDS[routing.weights], routing.normalize,
        correction is not None, routing.n_group, routing.n_group_used, routing.group_best,
        triton.next_power_of_2(routing.n_group), num_warps=1,
    )  # fmt: skip
    return chosen, weights


def blocks(chosen: Any, n_expert: int, size: int, most: int) -> tuple[Any, Any]:
    """As `Assignment.blocks` says, of which there are `most`."""
    experts = torch.empty(most, dtype=torch.int32, device=chosen.device)
    pairs = torch.empty((most, size), dtype=torch.int32, device=chosen.device)
    divide[(n_expert,)](
        chosen.contiguous(), experts, pairs, chosen.numel(), most,
        n_expert, triton.next_power_of_2(n_expert + 1), size, CHUNK, num_warps=4,
    )  # fmt: skip
    return experts, pairs
