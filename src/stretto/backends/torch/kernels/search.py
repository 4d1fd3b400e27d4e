"""Kernels for rows with so many candidates, after top-k or top-p too, that one program cannot hold them.

The cut is searched: a number such that those above it stay, and some of those that equal it. Each turn is a
launch with many programs a row, which count and weigh what reaches `WAYS` keys between two bounds; the next
turn goes on between the two keys that the cut is between. All sums are in float64, in one order. First the
cut of top-k is searched, then that of top-p; then `tally` weighs what stays, part by part, and `pick` draws.
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
    compute_weight,
    draw_uniform,
    load_params,
    locate_row,
    wrong,
)

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"


WAYS = tl.constexpr(32)  # keys that are tried in one turn
STATE = tl.constexpr(4)  # integers: the lower bound, the upper one, how many equals stay, the phase
BY_COUNT = tl.constexpr(0)  # phases: top-k's cut is searched,
BY_WEIGHT = tl.constexpr(1)  # top-p's,
FOUND = tl.constexpr(2)  # none any more


@triton.jit
def encode_key(x):
    """An integer for each number, in the same order; −0 and 0 are equals."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def decode_key(key):
    """The number of a key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def as_key(x):
    """The key of one number, as int64."""
    return tl.sum(encode_key(tl.zeros([1], tl.float32) + x).to(tl.int64), 0)


@triton.jit
def load_tempered(logits, slot, masks, n_words, n_vocab, temperature, stretch):
    """The tempered logits of a stretch (−inf: none), and their ids."""
    ids = stretch * STRETCH + tl.arange(0, STRETCH)
    x = tl.load(logits + ids, mask=ids < n_vocab, other=float("-inf"))
    x = allowed(x, ids, ids < n_vocab, masks, slot, n_words)
    return tl.div_rn(x, temperature), ids


@triton.jit
def find_top(peaks, row, n_peaks, temperature, PEAKS: tl.constexpr):
    """The highest tempered logit."""
    at = tl.arange(0, PEAKS)
    peak = tl.load(peaks + row * n_peaks + at, mask=at < n_peaks, other=float("-inf"))
    return tl.div_rn(wrong(peak)[1], temperature)


@triton.jit
def choose_step(low, high):
    """The distance of the keys that are tried between two bounds."""
    return tl.maximum((high - low + WAYS) // (WAYS + 1), 1)


@triton.jit
def narrow(low, high, ties, phase, enough, n, weight, top_k, top_p, top):
    """The state after a turn in which `n` numbers reached the keys, and weighed so much."""
    each = compute_weight(decode_key(low.to(tl.int32)), top)
    above = tl.max(weight, 0)  # of the lowest key: where the cut is found, what is above it
    if low == high:
        if phase == BY_COUNT:
            ties = top_k - tl.max(n, 0).to(tl.int64)
            enough = top_p * (above + each * ties)
            high = as_key(top)
            phase = tl.where(top_p < 1.0, BY_WEIGHT, FOUND).to(tl.int64)
        else:
            needed = tl.maximum(tl.ceil((enough - above) / tl.maximum(each, 1e-300)), 1.0)
            needed = tl.minimum(needed, 2147483647.0).to(tl.int64)
            ties = tl.where(each > 0.0, tl.minimum(ties, needed), ties)
            phase = phase * 0 + FOUND
    else:
        step = choose_step(low, high)
        by_weight = phase == BY_WEIGHT
        reached = (by_weight & (weight >= enough)) | ((by_weight == 0) & (n >= top_k))
        n_reached = tl.sum(reached.to(tl.int64), 0)
        ties = tl.where(n_reached > 0, NONE, ties)  # the cut is another one now
        low += step * n_reached
        high = tl.minimum(high, low + step - 1)
    return low, high, ties, phase, enough


@triton.jit(do_not_specialize=["n_vocab", "n_peaks", "n_words", "n_parts", "turn", "n_rows"])
def search(
    block, peaks, masks, weights, tokens, states, sums, counts, heavies, n_vocab, n_peaks, n_words, n_parts,
    turn, n_rows, PEAKS: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One turn: from the last one's counts and weights to those of new keys.

    `states` int64[turns, rows, STATE] and `sums` float64[turns, rows], what top-p has to reach, are of all
    turns; `counts` int32 and `heavies` float64[2, rows, parts, WAYS] of the last two.
    """
    part, row = tl.program_id(0), tl.program_id(1)
    if tl.load(tokens + row) == WIDE:
        logits, slot = locate_row(peaks, block, row)
        temperature, _, top_k, top_p = load_params(block, row)
        top = find_top(peaks, row, n_peaks, temperature, PEAKS)
        way = tl.arange(0, WAYS)
        if turn == 0:
            few = (top_k > 0) & (top_k < n_vocab)
            every = tl.arange(0, PEAKS)
            share = tl.load(weights + row * n_peaks + every, mask=every < n_peaks, other=0.0)
            enough = tl.where(few, 0.0, top_p * tl.sum(share.to(tl.float64), 0))
            low = as_key(float("-inf"))
            high = as_key(top)
            ties = low * 0 + NONE
            phase = low * 0 + tl.where(few, BY_COUNT, tl.where(top_p < 1.0, BY_WEIGHT, FOUND))
        else:
            state = states + ((turn - 1) * n_rows + row) * STATE
            low = tl.load(state)
            high = tl.load(state + 1)
            ties = tl.load(state + 2)
            phase = tl.load(state + 3)
            enough = tl.load(sums + (turn - 1) * n_rows + row)
            if phase != FOUND:
                each = tl.arange(0, PARTS)
                at = (((turn - 1) % 2 * n_rows + row) * n_parts + each[:, None]) * WAYS + way[None, :]
                inside = (each < n_parts)[:, None]
                n = tl.sum(tl.load(counts + at, mask=inside, other=0), 0)
                weight = tl.sum(tl.load(heavies + at, mask=inside, other=0.0), 0)
                low, high, ties, phase, enough = narrow(
                    low, high, ties, phase, enough, n, weight, top_k, top_p, top
                )
        if part == 0:
            state = states + (turn * n_rows + row) * STATE
            tl.store(state, low)
            tl.store(state + 1, high)
            tl.store(state + 2, ties)
            tl.store(state + 3, phase)
            tl.store(sums + turn * n_rows + row, enough)
        if phase != FOUND:
            keys = low + choose_step(low, high) * (1 + way)
            n = tl.zeros([STRETCH, WAYS], tl.int32)
            weight = tl.zeros([STRETCH, WAYS], tl.float64)
            for i in range(TILE):
                x = load_tempered(logits, slot, masks, n_words, n_vocab, temperature, part * TILE + i)[0]
                reaches = (encode_key(x)[:, None] >= keys[None, :]) & (x > float("-inf"))[:, None]
                n += reaches.to(tl.int32)
                weight += tl.where(reaches, compute_weight(x, top)[:, None], 0.0)
            at = ((turn % 2 * n_rows + row) * n_parts + part) * WAYS + way
            tl.store(counts + at, tl.sum(n, 0))
            tl.store(heavies + at, tl.sum(weight, 0))


@triton.jit(do_not_specialize=["n_vocab", "n_peaks", "n_words", "n_parts"])
def tally(
    block, peaks, masks, tokens, states, counts, heavies, n_vocab, n_peaks, n_words, n_parts,
    PEAKS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Of each part, how many numbers equal the cut, and what those above it weigh. `states`: the last."""
    part, row = tl.program_id(0), tl.program_id(1)
    if tl.load(tokens + row) == WIDE:
        logits, slot = locate_row(peaks, block, row)
        temperature, log_min_p, _, _ = load_params(block, row)
        top = find_top(peaks, row, n_peaks, temperature, PEAKS)
        cut = tl.load(states + row * STATE)
        n = tl.zeros([STRETCH], tl.int32)
        weight = tl.zeros([STRETCH], tl.float64)
        for i in range(TILE):
            x = load_tempered(logits, slot, masks, n_words, n_vocab, temperature, part * TILE + i)[0]
            key = encode_key(x)
            stays = (x >= top + log_min_p) & (x > float("-inf"))
            n += (stays & (key == cut)).to(tl.int32)
            weight += tl.where(stays & (key > cut), compute_weight(x, top), 0.0)
        at = (row * n_parts + part) * WAYS
        tl.store(counts + at, tl.sum(n, 0))
        tl.store(heavies + at, tl.sum(weight, 0))


@triton.jit(do_not_specialize=["n_vocab", "n_peaks", "n_words", "n_parts"])
def pick(
    block, peaks, masks, tokens, following, steps, states, counts, heavies, n_vocab, n_peaks, n_words,
    n_parts, PEAKS: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The token at the random number on the line of what stays, in order of ids: first its part."""
    row = tl.program_id(0)
    if tl.load(tokens + row) == WIDE:
        logits, slot = locate_row(peaks, block, row)
        temperature, log_min_p, _, _ = load_params(block, row)
        top = find_top(peaks, row, n_peaks, temperature, PEAKS)
        uniform = draw_uniform(block, row, tl.load(steps))
        cut = tl.load(states + row * STATE)
        ties = tl.load(states + row * STATE + 2)
        each = compute_weight(decode_key(cut.to(tl.int32)), top)
        parts = tl.arange(0, PARTS)
        at = (row * n_parts + parts) * WAYS
        tied = tl.load(counts + at, mask=parts < n_parts, other=0).to(tl.int64)
        before = tl.cumsum(tied, 0) - tied
        kept = tl.maximum(tl.minimum(ties - before, tied), 0)
        share = tl.load(heavies + at, mask=parts < n_parts, other=0.0)
        share += tl.where(kept > 0, each * kept, 0.0)
        line = tl.cumsum(share, 0)
        target = uniform * tl.max(line, 0)
        part = tl.min(tl.where((share > 0.0) & (line > target), parts, NONE), 0)
        part = tl.where(part == NONE, tl.max(tl.where(share > 0.0, parts, 0), 0), part)
        total = tl.max(tl.where((parts < part) & (share > 0.0), line, 0.0), 0)
        n_tied = tl.sum(tl.where(parts == part, before, 0), 0)
        found = NONE + 0
        last = -1
        for i in range(TILE):
            x, ids = load_tempered(logits, slot, masks, n_words, n_vocab, temperature, part * TILE + i)
            key = encode_key(x)
            stays = (x >= top + log_min_p) & (x > float("-inf"))
            equal = stays & (key == cut)
            order = n_tied + tl.cumsum(equal.to(tl.int64), 0)
            stays = stays & ((key > cut) | (equal & (order <= ties)))
            inner = total + tl.cumsum(tl.where(stays, compute_weight(x, top), 0.0), 0)
            found = tl.minimum(found, tl.min(tl.where(stays & (inner > target), ids, NONE), 0))
            last = tl.maximum(last, tl.max(tl.where(stays, ids, -1), 0))
            n_tied += tl.sum(equal.to(tl.int64), 0)
            total = tl.max(inner, 0)
        token = tl.where(found == NONE, last, found)
        tl.store(tokens + row, token)
        tl.store(following + row, tl.maximum(token, 0))


# Kernels for rows that are drawn from whole.
#
# The sum over a whole row is the native sampler's: float32 sums of stretches, each in one order, by the
# same exponential, then float64.

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"


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
        logits, slot = locate_row(peaks, block, row)
        temperature, log_min_p, top_k, top_p = load_params(block, row)
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
    weight = compute_weight(tl.div_rn(x, temperature), top)
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
        logits, slot = locate_row(peaks, block, row)
        temperature, log_min_p, top_k, top_p = load_params(block, row)
        few = (top_k > 0) & (top_k < n_vocab)
        if (few | (top_p < 1.0) | (log_min_p > float("-inf"))) == 0:
            at = tl.arange(0, PEAKS)
            peak = tl.load(peaks + row * n_peaks + at, mask=at < n_peaks, other=float("-inf"))
            top = tl.div_rn(wrong(peak)[1], temperature)
            uniform = draw_uniform(block, row, tl.load(steps))
            weights += row * n_peaks
            token = draw_from_all(
                logits, slot, masks, n_words, n_vocab, weights, n_peaks, temperature, top, uniform, PEAKS
            )
            tl.store(tokens + row, token)
            tl.store(following + row, tl.maximum(token, 0))
