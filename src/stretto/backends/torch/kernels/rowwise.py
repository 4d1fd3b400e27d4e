"""Norms, sums, rotations: one program for each row, so that a row's bits are its own.

The number of warps depends on the width alone, because the order of a row's sum depends on it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from stretto.backends.torch.kernels.early import await_inputs

# Hints that bring weights from memory into the cache of the GPU.


@triton.jit
def prefetch_rows(weight, part, rows, stride, size, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Ask for the first `size` bytes of BLOCK rows, `stride` bytes apart; nothing waits for them.

    `part`: which of the programs this is that prefetch beside a row of the kernel.
    """
    block = part * tl.num_programs(0) + tl.program_id(0)
    await_inputs(EARLY)  # more would be in the way of the last product
    row = tl.minimum(block * BLOCK + tl.arange(0, BLOCK), rows - 1)
    at = weight.to(tl.int64) + row.to(tl.int64) * stride
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,r",
        [at, tl.full([BLOCK], 0, tl.int32) + size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def gains(gain, shift, at, ok, GAIN: tl.constexpr):
    """What a norm multiplies with and adds [B]. GAIN 0: nothing is read; 1: a gain; 2: gain and shift."""
    g, b = at * 0.0, at * 0.0
    if GAIN > 0:
        g = tl.load(gain + at, mask=ok, other=0.0)
    if GAIN > 1:
        b = tl.load(shift + at, mask=ok, other=0.0)
    return g, b


@triton.jit
def normalized(v, ok, g, b, eps, WIDTH: tl.constexpr, LAYER: tl.constexpr, GAIN: tl.constexpr):
    """v [B] divided by its root mean square, after its mean is taken off if LAYER; times g, plus b."""
    if LAYER:
        v = tl.where(ok, v - tl.sum(v, 0) / WIDTH, 0.0)
    v = v / tl.sqrt(tl.sum(v * v, 0) / WIDTH + eps)
    if GAIN > 0:
        v = v * g
    if GAIN > 1:
        v = v + b
    return v


@triton.jit
def add_norm(
    x, y, out, post_gain, post_shift, gain, shift, scale, post_eps, eps, groups, stride_y,
    next_weight, next_rows, next_stride, next_size,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, POST: tl.constexpr, POST_LAYER: tl.constexpr,
    POST_GAIN: tl.constexpr, NORM: tl.constexpr, LAYER: tl.constexpr, GAIN: tl.constexpr, KEEP: tl.constexpr,
    PREFETCHED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Row by row: x += scale × [norm] y, if ADD; out = norm(x), if NORM; with KEEP x becomes that too.

    Row i's gain is that of group i mod `groups`. Further programs prefetch PREFETCHED rows each of the
    weights that are read next.
    """
    row = tl.program_id(0).to(tl.int64)
    if PREFETCHED > 0 and tl.program_id(1) > 0:
        prefetch_rows(next_weight, tl.program_id(1) - 1, next_rows, next_stride, next_size, PREFETCHED, EARLY)
        return
    e = tl.arange(0, BLOCK)
    ok = e < WIDTH
    # Weights were there before the pass: there is no need to wait for the last kernel.
    post_g, post_b = gains(post_gain, post_shift, e, ok, POST_GAIN if ADD and POST else 0)
    g, b = gains(gain, shift, (row % groups) * WIDTH + e, ok, GAIN if NORM else 0)
    await_inputs(EARLY)
    v = tl.load(x + row * WIDTH + e, mask=ok, other=0.0).to(tl.float32)
    if ADD:
        w = tl.load(y + row * stride_y + e, mask=ok, other=0.0).to(tl.float32)
        if POST:
            w = normalized(w, ok, post_g, post_b, post_eps, WIDTH, POST_LAYER, POST_GAIN)
        v += w * scale
        if not KEEP:
            tl.store(x + row * WIDTH + e, v, mask=ok)
    if NORM:
        v = normalized(v, ok, g, b, eps, WIDTH, LAYER, GAIN)
        tl.store(out + row * WIDTH + e, v.to(out.dtype.element_ty), mask=ok)
        if KEEP:
            tl.store(x + row * WIDTH + e, v.to(x.dtype.element_ty), mask=ok)


@triton.jit
def partner(d, PAIRS: tl.constexpr, ADJACENT: tl.constexpr):
    """For each number of a head: its pair, the other one of the pair, and whether it is the second."""
    rotated = d < 2 * PAIRS
    if ADJACENT:
        pair, other = d // 2, d ^ 1
        second = d % 2 == 1
    else:
        pair = tl.where(d < PAIRS, d, d - PAIRS)
        other = tl.where(d < PAIRS, d + PAIRS, d - PAIRS)
        second = d >= PAIRS
    return tl.where(rotated, pair, 0), tl.where(rotated, other, d), second


@triton.jit
def angles(
    cos, sin, positions, axes, row, d, PAIRS: tl.constexpr, ADJACENT: tl.constexpr, AXES: tl.constexpr
):
    """Cosines and signed sines [DP] of a row's rotation."""
    pair, _, second = partner(d, PAIRS, ADJACENT)
    if AXES:
        position = tl.load(positions + row * 3 + tl.load(axes + pair))
    else:
        position = tl.load(positions + row) + pair * 0
    at = position.to(tl.int64) * PAIRS + pair
    rotated = d < 2 * PAIRS
    c = tl.where(rotated, tl.load(cos + at), 1.0)
    s = tl.where(rotated, tl.load(sin + at), 0.0)
    return c, tl.where(second, s, -s)


@triton.jit
def turned(
    source, ok, head, d, gain, c, s, eps, stride,
    D: tl.constexpr, H: tl.constexpr, PAIRS: tl.constexpr, ADJACENT: tl.constexpr,
    NORM: tl.constexpr, LAYER: tl.constexpr, GAIN: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """Heads of a row [heads, DP], normalised and rotated by `angles`.

    NORM 0: no norm; 1: each head; 2: the whole row. GAIN 0: none; 1: one for all heads; 2: each head its own.
    AFTER: the rotation comes first. Each number is computed from itself and the other of its pair.
    """
    _, other, _ = partner(d, PAIRS, ADJACENT)
    a = tl.load(source + head[:, None] * stride + d[None, :], mask=ok, other=0.0).to(tl.float32)
    b = a
    if PAIRS > 0:
        b = tl.load(source + head[:, None] * stride + other[None, :], mask=ok, other=0.0).to(tl.float32)
    if NORM > 0 and not AFTER:
        if LAYER:
            mean = tl.sum(a, 1)[:, None] / D
            a, b = tl.where(ok, a - mean, 0.0), tl.where(ok, b - mean, 0.0)
        squares = tl.sum(a * a, 1)
        if NORM == 2:
            root = tl.sqrt(tl.sum(squares, 0) / (H * D) + eps)
        else:
            root = tl.sqrt(squares / D + eps)[:, None]
        a, b = a / root, b / root
        if GAIN > 0:
            at = head[:, None] * D if GAIN == 2 else head[:, None] * 0
            a = a * tl.load(gain + at + d[None, :], mask=ok, other=0.0)
            b = b * tl.load(gain + at + other[None, :], mask=ok, other=0.0)
    if PAIRS > 0:
        a = tl.fma(a, c[None, :], b * s[None, :])  # one way to fuse, in every kernel
    if NORM > 0 and AFTER:
        squares = tl.sum(tl.where(ok, a * a, 0.0), 1)
        if NORM == 2:
            root = tl.sqrt(tl.sum(squares, 0) / (H * D) + eps)
        else:
            root = tl.sqrt(squares / D + eps)[:, None]
        a = a / root
        if GAIN > 0:
            at = head[:, None] * D if GAIN == 2 else head[:, None] * 0
            a = a * tl.load(gain + at + d[None, :], mask=ok, other=0.0)
    return a


@triton.jit
def move_heads(
    source, target, first, d, gain, c, s, eps, factor, stride,
    D: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, PAIRS: tl.constexpr, ADJACENT: tl.constexpr,
    NORM: tl.constexpr, LAYER: tl.constexpr, GAIN: tl.constexpr, AFTER: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    """HP heads of a row from `first` on, turned, and multiplied with `factor` if TIMES, to `target`."""
    head = first + tl.arange(0, HP)
    ok = (head < H)[:, None] & (d < D)[None, :]
    a = turned(source, ok, head, d, gain, c, s, eps, stride, D, H, PAIRS, ADJACENT, NORM, LAYER, GAIN, AFTER)
    if TIMES:
        a = a * factor
    tl.store(target + head[:, None] * D + d[None, :], a.to(target.dtype.element_ty), mask=ok)


@triton.jit
def queries_and_keys(
    qkv, q, k, v, q_gain, k_gain, v_gain, cos, sin, rotated, axes, positions, cells,
    q_eps, k_eps, v_eps, slope, length, offset, stride_row, at_k, at_v,
    next_weight, next_rows, next_stride, next_size,
    H: tl.constexpr, HK: tl.constexpr, HP: tl.constexpr, KP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    QSTRIDE: tl.constexpr, PAIRS: tl.constexpr, ADJACENT: tl.constexpr, AXES: tl.constexpr,
    Q_NORM: tl.constexpr, Q_LAYER: tl.constexpr, Q_GAIN: tl.constexpr,
    K_NORM: tl.constexpr, K_LAYER: tl.constexpr, K_GAIN: tl.constexpr,
    V_NORM: tl.constexpr, V_GAIN: tl.constexpr,
    AFTER: tl.constexpr, WARM: tl.constexpr, PLACED: tl.constexpr, PARTS: tl.constexpr, LAST: tl.constexpr,
    PREFETCHED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A row's queries go to `q`, rotated; its K and V to its cell (PLACED), or to its row of `k` and `v`.

    The first PARTS programs of a row have HP of its heads each; the next one has K and another one V, unless
    LAST is PARTS. Those from LAST on prefetch PREFETCHED rows each of the weights that are read next.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if PREFETCHED > 0 and part >= LAST:
        prefetch_rows(next_weight, part - LAST, next_rows, next_stride, next_size, PREFETCHED, EARLY)
        return
    source = qkv + row * stride_row
    d = tl.arange(0, DP)
    c, s = d * 1.0, d * 1.0
    # Made at the beginning of a pass, several kernels ago: there is no need to wait for the last one.
    if PAIRS > 0:
        c, s = angles(cos, sin, rotated, axes, row, d, PAIRS, ADJACENT, AXES)
    to = row
    if PLACED:
        to = tl.load(cells + row).to(tl.int64)
    await_inputs(EARLY)
    if part < PARTS:
        factor = 1.0
        if WARM:
            steps = tl.floor((tl.load(positions + row).to(tl.float32) + offset) / length)
            factor = 1.0 + slope * tl.log(1.0 + steps)
        move_heads(
            source, q + row * (H * D), part * HP, d, q_gain, c, s, q_eps, factor, QSTRIDE,
            D, H, HP, PAIRS, ADJACENT, Q_NORM, Q_LAYER, Q_GAIN, AFTER, WARM,
        )  # fmt: skip
    elif part == PARTS:
        move_heads(
            source + at_k, k + to * (HK * D), 0, d, k_gain, c, s, k_eps, 1.0, D,
            D, HK, KP, PAIRS, ADJACENT, K_NORM, K_LAYER, K_GAIN, AFTER, False,
        )  # fmt: skip
    else:
        move_heads(
            source + at_v, v + to * (HK * D), 0, d, v_gain, c, s, v_eps, 1.0, D,
            D, HK, KP, 0, False, V_NORM, False, V_GAIN, False, False,
        )  # fmt: skip


@triton.jit
def gate_heads(
    mixed, gates, stride, HEADS: tl.constexpr, SIZE: tl.constexpr, GATE_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """mixed × sigmoid(gates), in place: heads of a row of `gates` are GATE_STRIDE numbers apart."""
    await_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = i < HEADS * SIZE
    g = tl.load(gates + row * stride + i // SIZE * GATE_STRIDE + i % SIZE, mask=ok, other=0.0).to(tl.float32)
    at = mixed + row * (HEADS * SIZE) + i
    v = tl.load(at, mask=ok, other=0.0).to(tl.float32) / (1.0 + tl.exp(-g))
    tl.store(at, v.to(mixed.dtype.element_ty), mask=ok)


@triton.jit
def look_up(weight, at, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Row i of `out` is row at[i] of the weights."""
    await_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(weight + tl.load(at + row).to(tl.int64) * WIDTH + e, mask=e < WIDTH)
    tl.store(out + row * WIDTH + e, v.to(out.dtype.element_ty), mask=e < WIDTH)


@triton.jit
def cut_off(x, out, times, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """What is above a row's mean by more than `times` its standard deviation, and by how much."""
    await_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    ok = e < WIDTH
    v = tl.load(x + row * stride + e, mask=ok, other=0.0)
    v = tl.where(ok, v - tl.sum(v, 0) / WIDTH, 0.0)
    v = v - times * tl.sqrt(tl.sum(v * v, 0) / WIDTH)
    tl.store(out + row * WIDTH + e, tl.maximum(v, 0.0), mask=ok)


# Mean squares of rows: one program for each, with as many warps as its width asks for.


@triton.jit
def mean_of_squares(x, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    v = tl.load(x + row * WIDTH + e, mask=e < WIDTH, other=0.0)
    tl.store(out + row, tl.sum(v * v, 0) / WIDTH)


def mean_square(x: Any) -> Any:
    """float32[..., 1]: of x float32[..., width]."""
    x, width = x.contiguous(), x.shape[-1]
    out = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    if out.numel():
        block = triton.next_power_of_2(width)
        mean_of_squares[(out.numel(),)](x, out, width, block, num_warps=4 if block <= 4096 else 8)
    return out
