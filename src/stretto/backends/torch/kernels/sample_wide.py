# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""Kernels for rows that are drawn from whole.

The sum over a whole row is the native sampler's: float32 sums of stretches, each in one order, by the same
exponential, then float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.kernels.sample import (
    NONE,
    STRETCH,
    WIDE,
    WORDS,
    allowed,
    params_of,
    row_of,
    uniform_of,
    weight_of,
    wrong,
)


@triton.jit
def exponential(x):
    """e^x for x ≤ 0 with the arithmetic of csrc/kernels; below −87 it stays at e^−87."""
    x = tl.maximum(x, -87.0)
    whole = x * 1.44269504 + 12582912.0 - 12582912.0  # rounded to the nearest, ties to even
    x = tl.fma(whole, tl.full(x.shape, -0.693359375, tl.float32), x)
    x = tl.fma(whole, tl.full(x.shape, 2.12194440e-4, tl.float32), x)
    p = tl.full(x.shape, 1.0 / 5040.0, tl.float32)
    p = tl.fma(p, x, tl.full(x.shape, 1.0 / 720.0, tl.float32))
    p = tl.fma(p, x, tl.full(x.shape, 1.0 / 120.0, tl.float32))
    p = tl.fma(p, x, tl.full(x.shape, 1.0 / 24.0, tl.float32))
    p = tl.fma(p, x, tl.full(x.shape, 1.0 / 6.0, tl.float32))
    p = tl.fma(p, x, tl.full(x.shape, 0.5, tl.float32))
    p = tl.fma(p, x, tl.full(x.shape, 1.0, tl.float32))
    p = tl.fma(p, x, tl.full(x.shape, 1.0, tl.float32))
    return p * ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def halves(x, ROWS: tl.constexpr, N: tl.constexpr):
    """The first half of each row + the second: float32[ROWS, N / 2]."""
    low, high = tl.split(tl.permute(tl.reshape(x, [ROWS, 2, N // 2]), [0, 2, 1]))
    return low + high


@triton.jit(do_not_specialize=["n_vocab", "n_peaks", "n_words"])
def weigh(block, peaks, masks, weights, n_vocab, n_peaks, n_words, PEAKS: tl.constexpr, TILE: tl.constexpr):
    """What the stretches of a row weigh, if all of it is drawn from or shared by top-p."""
    row, part = tl.program_id(1), tl.program_id(0)
    if tl.load(block + row * WORDS) != 0:
        logits, slot = row_of(peaks, block, row)
        temperature, log_min_p, top_k, top_p = params_of(block, row)
        few = (top_k > 0) & (top_k < n_vocab)
        whole = (few == 0) & (temperature > 0) & ((top_p < 1.0) | (log_min_p == float("-inf")))
        if whole:
            every = tl.arange(0, PEAKS)
            peak = tl.load(peaks + row * n_peaks + every, mask=every < n_peaks, other=float("-inf"))
            best = tl.max(peak, 0)
            factor = tl.div_rn(1.0, temperature)
            stretch = part * TILE + tl.arange(0, TILE)
            lane = tl.arange(0, 16)
            total = tl.zeros([TILE, 16], tl.float32)
            for i in range(0, STRETCH, 16):
                ids = stretch[:, None] * STRETCH + i + lane[None, :]
                x = tl.load(logits + ids, mask=ids < n_vocab, other=float("-inf"))
                x = allowed(x, ids, ids < n_vocab, masks, slot, n_words)
                total += exponential((x - best) * factor)
            total = halves(halves(halves(total, TILE, 16), TILE, 8), TILE, 4)
            low, high = tl.split(total)
            own = tl.load(peaks + row * n_peaks + stretch, mask=stretch < n_peaks, other=float("-inf"))
            depth = tl.div_rn(own, temperature).to(tl.float64) - tl.div_rn(best, temperature).to(tl.float64)
            total = tl.where(depth < -60.0, 0.0, low + high)
            tl.store(weights + row * n_peaks + stretch, total, mask=stretch < n_peaks)


@triton.jit
def draw_from_all(
    logits, slot, masks, n_words, n_vocab, weights, n_peaks, temperature, top, uniform, PEAKS: tl.constexpr
):
    """The token at `uniform` on the line of all weights, in order of ids."""
    at = tl.arange(0, PEAKS)
    share = tl.load(weights + at, mask=at < n_peaks, other=0.0).to(tl.float64)
    line = tl.cumsum(share, 0)
    target = uniform * tl.max(line, 0)
    stretch = tl.min(tl.where((share > 0.0) & (line > target), at, NONE), 0)
    stretch = tl.where(stretch == NONE, tl.max(tl.where(share > 0.0, at, 0), 0), stretch)
    before = tl.max(tl.where((at < stretch) & (share > 0.0), line, 0.0), 0)
    ids = stretch * STRETCH + tl.arange(0, STRETCH)
    x = tl.load(logits + ids, mask=ids < n_vocab, other=float("-inf"))
    x = allowed(x, ids, ids < n_vocab, masks, slot, n_words)
    weight = weight_of(tl.div_rn(x, temperature), top)
    inner = before + tl.cumsum(weight, 0)
    token = tl.min(tl.where((weight > 0.0) & (inner > target), ids, NONE), 0)
    return tl.where(token == NONE, tl.max(tl.where(weight > 0.0, ids, -1), 0), token)


@triton.jit(do_not_specialize=["n_vocab", "n_peaks", "n_words"])
def draw_whole(
    block, peaks, masks, weights, tokens, following, steps, n_vocab, n_peaks, n_words, PEAKS: tl.constexpr
):
    """The tokens of rows that `select` has left and that are drawn from whole."""
    row = tl.program_id(0)
    if tl.load(tokens + row) == WIDE:
        logits, slot = row_of(peaks, block, row)
        temperature, log_min_p, top_k, top_p = params_of(block, row)
        few = (top_k > 0) & (top_k < n_vocab)
        if (few | (top_p < 1.0) | (log_min_p > float("-inf"))) == 0:
            at = tl.arange(0, PEAKS)
            peak = tl.load(peaks + row * n_peaks + at, mask=at < n_peaks, other=float("-inf"))
            top = tl.div_rn(wrong(peak)[1], temperature)
            uniform = uniform_of(block, row, tl.load(steps))
            weights += row * n_peaks
            token = draw_from_all(
                logits, slot, masks, n_words, n_vocab, weights, n_peaks, temperature, top, uniform, PEAKS
            )
            tl.store(tokens + row, token)
            tl.store(following + row, tl.maximum(token, 0))
