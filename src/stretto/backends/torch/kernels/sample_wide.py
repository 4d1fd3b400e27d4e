# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""Kernels for rows with many candidates: drawn from whole, or with so many that top-k and top-p leave.

The sum over a whole row is the native sampler's: float32 sums of stretches, each in one order, by the same
exponential, then float64. Cuts are searched bit by bit, each time with a pass over the stretches that may
hold candidates.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.kernels.sample import (
    LIST_TILE,
    NONE,
    STRETCH,
    WIDE,
    WORDS,
    allowed,
    list_stretches,
    params_of,
    row_of,
    uniform_of,
    weight_of,
    wrong,
)

WAYS = tl.constexpr(4)  # keys that are tried in one pass


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


@triton.jit
def load_tile(logits, slot, masks, n_words, n_vocab, stretches, n_stretches, first, temperature):
    """Tempered logits of some listed stretches (−inf: none), as integers in the same order, and their ids."""
    at = first + tl.arange(0, LIST_TILE)
    stretch = tl.load(stretches + at, mask=at < n_stretches, other=NONE // STRETCH)
    ids = stretch[:, None] * STRETCH + tl.arange(0, STRETCH)[None, :]
    x = tl.load(logits + ids, mask=ids < n_vocab, other=float("-inf"))
    x = allowed(x, ids, ids < n_vocab, masks, slot, n_words)
    x = tl.div_rn(tl.reshape(x, LIST_TILE * STRETCH), temperature)
    return x, key_of(x), tl.reshape(ids, LIST_TILE * STRETCH)


@triton.jit
def key_of(x):
    """An integer for each number, in the same order; −0 and 0 are equals."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def value_of(key):
    """The number of a key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def reach(logits, slot, masks, n_words, n_vocab, stretches, n_stretches, temperature, top, keys):
    """How many numbers reach each of `WAYS` keys, and what they weigh."""
    n = tl.zeros([LIST_TILE * STRETCH, WAYS], tl.int32)
    weight = tl.zeros([LIST_TILE * STRETCH, WAYS], tl.float64)
    for first in range(0, n_stretches, LIST_TILE):
        x, own, _ = load_tile(
            logits, slot, masks, n_words, n_vocab, stretches, n_stretches, first, temperature
        )
        found = (own[:, None] >= keys[None, :]) & (x > float("-inf"))[:, None]
        n += found.to(tl.int32)
        weight += tl.where(found, weight_of(x, top)[:, None], 0.0)
    return tl.sum(n, 0), tl.sum(weight, 0)


@triton.jit(do_not_specialize=["n_vocab", "n_peaks", "n_words"])
def sample_wide(
    block, peaks, masks, stretches, weights, lows, tokens, following, steps, n_vocab, n_peaks, n_words,
    PEAKS: tl.constexpr,
):  # fmt: skip
    """The tokens of rows that `select` has left."""
    row = tl.program_id(0)
    if tl.load(tokens + row) == WIDE:
        logits, slot = row_of(peaks, block, row)
        temperature, log_min_p, top_k, top_p = params_of(block, row)
        at = tl.arange(0, PEAKS)
        peak = tl.load(peaks + row * n_peaks + at, mask=at < n_peaks, other=float("-inf"))
        best = wrong(peak)[1]
        top = tl.div_rn(best, temperature)
        uniform = uniform_of(block, row, tl.load(steps))
        few = (top_k > 0) & (top_k < n_vocab)
        stretches += row * n_peaks
        weights += row * n_peaks
        if (few | (top_p < 1.0) | (log_min_p > float("-inf"))) == 0:
            token = draw_from_all(
                logits, slot, masks, n_words, n_vocab, weights, n_peaks, temperature, top, uniform, PEAKS
            )
        else:
            n_stretches = list_stretches(peak, tl.load(lows + row), at, stretches)
            cut = tl.sum(key_of(tl.full([1], float("-inf"), tl.float32)).to(tl.int64), 0)
            highest = tl.sum(key_of(tl.zeros([1], tl.float32) + top).to(tl.int64), 0)
            ties = NONE + 0  # numbers above the cut stay, and so many of those at it
            enough = uniform * 0.0
            if (few == 0) & (top_p < 1.0):
                share = tl.load(weights + at, mask=at < n_peaks, other=0.0)
                enough = top_p * tl.sum(share.to(tl.float64), 0)
            # Two searches, for top-k and for top-p, each followed by a look at what is above its cut.
            by_weight = few == 0
            high = highest
            searching = few | (top_p < 1.0)
            while searching:
                is_found = cut == high
                step = (high - cut + WAYS) // (WAYS + 1)
                step = tl.maximum(step, 1)
                n, weight = reach(
                    logits, slot, masks, n_words, n_vocab, stretches, n_stretches, temperature, top,
                    cut + step * (1 + tl.arange(0, WAYS)),
                )  # fmt: skip
                if is_found:
                    n_above = tl.max(n, 0)
                    above = tl.max(weight, 0)
                    each = weight_of(value_of(cut.to(tl.int32)), top)
                    if by_weight:
                        needed = tl.maximum(tl.ceil((enough - above) / tl.maximum(each, 1e-300)), 1.0)
                        needed = tl.minimum(needed, 2147483647.0).to(tl.int32)
                        ties = tl.where(each > 0.0, tl.minimum(ties, needed), ties)
                        searching = False
                    else:
                        ties = top_k - n_above
                        enough = top_p * (above + each * ties)
                        by_weight = True
                        high = highest
                        searching = top_p < 1.0
                else:
                    reached = (by_weight & (weight >= enough)) | ((by_weight == 0) & (n >= top_k))
                    n_reached = tl.sum(reached.to(tl.int32), 0)
                    ties = tl.where(n_reached > 0, NONE, ties)  # the cut is another one now
                    cut = cut + step * n_reached
                    high = tl.minimum(high, cut + step - 1)
            least = top + log_min_p
            token = draw_above(
                logits, slot, masks, n_words, n_vocab, stretches, n_stretches, temperature, top, cut, ties,
                least, uniform,
            )  # fmt: skip
        tl.store(tokens + row, token)
        tl.store(following + row, tl.maximum(token, 0))


@triton.jit
def draw_above(
    logits, slot, masks, n_words, n_vocab, stretches, n_stretches, temperature, top, cut, ties, least, uniform
):  # fmt: skip
    """A token of those above a key, and of the first `ties` at it."""
    target = uniform * 0.0 - 1.0
    token = -1
    for _ in range(2):  # the sum, then the token
        total = uniform * 0.0
        n_ties = 0
        found = NONE + 0
        last = -1
        for first in range(0, n_stretches, LIST_TILE):
            x, keys, ids = load_tile(
                logits, slot, masks, n_words, n_vocab, stretches, n_stretches, first, temperature
            )
            tied = (keys == cut) & (x > float("-inf"))
            order = n_ties + tl.cumsum(tied.to(tl.int32), 0)
            keep = ((keys > cut) | (tied & (order <= ties))) & (x >= least) & (x > float("-inf"))
            line = total + tl.cumsum(tl.where(keep, weight_of(x, top), 0.0), 0)
            found = tl.minimum(found, tl.min(tl.where(keep & (line > target), ids, NONE), 0))
            last = tl.maximum(last, tl.max(tl.where(keep, ids, -1), 0))
            n_ties += tl.sum(tied.to(tl.int32), 0)
            total = tl.max(line, 0)
        token = tl.where(found == NONE, last, found)
        target = uniform * total
    return token
