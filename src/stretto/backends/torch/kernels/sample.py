"""Kernels that sample: the chain of sampling/sampler.py, one program a row.

`find_peaks` reads the rows once; `select` looks only at stretches that hold candidates, as
csrc/sampling/sampler.cpp does. All cuts (top-k, top-p, min-p) are cuts in one order, by tempered logit and
then id: a candidate stays if few enough, and light enough ones, come before it. So nothing is sorted:
candidates are compared pair by pair. Rows with more candidates than `CANDIDATES` are left to `search.py`,
those that are drawn from whole to `sample_wide.py`.

A row's parameters are 64 bytes, `sampler.ROW`. Launch with `enable_fp_fusion=False`: the host's arithmetic
has no contraction.
"""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"


STRETCH = tl.constexpr(128)  # logits that have one peak
WORDS = tl.constexpr(8)  # of 8 bytes, the parameters of a row
CANDIDATES = tl.constexpr(1024)
FEW = tl.constexpr(128)  # candidates that most rows have at most
LIST_TILE = tl.constexpr(16)  # stretches that are gathered from at a time
FIRST_BOUND = tl.constexpr(64)  # peaks above which top-p alone looks first

HAS_NAN = tl.constexpr(-1)
NOTHING_LEFT = tl.constexpr(-2)
HAS_INFINITY = tl.constexpr(-3)
WIDE = tl.constexpr(-9)  # left to the wide kernel
NONE = tl.constexpr(2147483647)


@triton.jit
def locate_row(base, block, row):
    """A row's logits, and the slot of its mask (−1: none)."""
    # A distance from a buffer that is known to be aligned, not an address: so loads can be vectors.
    logits = base + tl.multiple_of(tl.load(block + row * WORDS), 4)
    slot = (tl.load(block + row * WORDS + 7) >> 32).to(tl.int32)
    return logits, slot


@triton.jit
def load_params(block, row):
    """temperature, the logarithm of min-p, top-k, top-p."""
    floats = tl.load(block + row * WORDS + 6)
    temperature = (floats & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    log_min_p = (floats >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    top_k = (tl.load(block + row * WORDS + 7) & 0xFFFFFFFF).to(tl.int32)
    top_p = tl.load(block + row * WORDS + 2).to(tl.float64, bitcast=True)
    return temperature, log_min_p, top_k, top_p


@triton.jit
def draw_uniform(block, row, step):
    """The random number that came with the row, or that its stream has for this step (Philox 4×64)."""
    uniform = tl.load(block + row * WORDS + 1).to(tl.float64, bitcast=True)
    draw = tl.load(block + row * WORDS + 5)
    if draw >= 0:
        draw += step
        key0 = tl.load(block + row * WORDS + 3).to(tl.uint64, bitcast=True)
        key1 = tl.load(block + row * WORDS + 4).to(tl.uint64, bitcast=True)
        c0 = (draw // 4 + 1).to(tl.uint64)
        c1 = tl.full((), 0, tl.uint64)
        c2 = c1
        c3 = c1
        m0 = tl.full((), 0xD2E7470EE14C6C93, tl.uint64)
        m1 = tl.full((), 0xCA5A826395121157, tl.uint64)
        for _ in range(10):
            high0 = tl.umulhi(m0, c0)
            high1 = tl.umulhi(m1, c2)
            low0 = m0 * c0
            low1 = m1 * c2
            c0 = high1 ^ c1 ^ key0
            c2 = high0 ^ c3 ^ key1
            c1 = low1
            c3 = low0
            key0 += 0x9E3779B97F4A7C15
            key1 += 0xBB67AE8584CAA73B
        lane = draw % 4
        number = tl.where(lane == 0, c0, tl.where(lane == 1, c1, tl.where(lane == 2, c2, c3)))
        uniform = (number >> 11).to(tl.float64) * 1.1102230246251565e-16
    return uniform


@triton.jit
def allowed(x, ids, inside, masks, slot, n_words):
    """Logits; −inf where the mask has no bit."""
    if slot >= 0:
        words = tl.load(masks + slot.to(tl.int64) * n_words + ids // 32, mask=inside, other=0)
        x = tl.where(((words >> (ids % 32)) & 1) != 0, x, float("-inf"))
    return x


@triton.jit
def a_little_below(x):
    """Numbers that differ by a rounding may be equals when tempered: this is certainly low enough."""
    low = x - tl.abs(x) * 1e-5
    return tl.where(low == low, low, float("-inf"))


@triton.jit
def compute_weight(tempered, top):
    """e^(tempered − top) in float64; nothing below e^−60, which cannot change a sum that has a 1 in it."""
    depth = tempered.to(tl.float64) - top.to(tl.float64)
    return tl.where(depth < -60.0, 0.0, tl.exp(tl.maximum(depth, -60.0)))


@triton.jit(do_not_specialize=["n_vocab", "n_peaks", "n_words"])
def find_peaks(block, peaks, masks, n_vocab, n_peaks, n_words, TILE: tl.constexpr):
    """Of every stretch the largest logit that may come, or NaN if there is one among them."""
    row, part = tl.program_id(1), tl.program_id(0)
    if tl.load(block + row * WORDS) != 0:
        logits, slot = locate_row(peaks, block, row)
        stretch = part * TILE + tl.arange(0, TILE)
        ids = stretch[:, None] * STRETCH + tl.arange(0, STRETCH)[None, :]
        inside = ids // 4 * 4 < n_vocab  # the same for four at a time: rows are padded to fours
        x = tl.load(logits + ids, mask=inside, other=float("-inf"))
        x = tl.where(ids < n_vocab, x, float("-inf"))
        x = allowed(x, ids, inside, masks, slot, n_words)
        has_nan = tl.max((x != x).to(tl.int32), 1)
        peak = tl.max(tl.where(x != x, float("-inf"), x), 1)
        peak = tl.where(has_nan != 0, float("nan"), peak)
        tl.store(peaks + row * n_peaks + stretch, peak, mask=stretch < n_peaks)


@triton.jit
def first_best(logits, slot, masks, n_words, n_vocab, peak, best, at):
    """The first of the largest."""
    stretch = tl.min(tl.where(peak == best, at, NONE), 0)
    ids = stretch * STRETCH + tl.arange(0, STRETCH)
    x = tl.load(logits + ids, mask=ids < n_vocab, other=float("-inf"))
    x = allowed(x, ids, ids < n_vocab, masks, slot, n_words)
    return tl.min(tl.where(x == best, ids, NONE), 0)


@triton.jit
def bound_by_peaks(peak, best, k):
    """A number that at least k peaks reach, and not many more than k; −inf if there are not so many.

    The k-th highest peak is no higher than the k-th best logit. It is searched by its distance from the
    best, to sixteen bits.
    """
    distance = (best - peak).to(tl.int32, bitcast=True) >> 15
    reach = 0
    for i in range(16):
        # The largest prefix below which there are fewer than k.
        higher = reach + (32768 >> i)
        n = tl.sum((distance < higher).to(tl.int32), 0)
        reach = tl.where(n < k, higher, reach)
    return tl.min(tl.where(distance <= reach, peak, best), 0)


@triton.jit
def list_stretches(peak, low, at, stretches):
    """Write the stretches that reach `low`, in order; return how many."""
    wanted = (peak >= low) & (peak > float("-inf"))
    place = tl.cumsum(wanted.to(tl.int32), 0) - 1
    tl.debug_barrier()
    tl.store(stretches + place, at, mask=wanted)
    tl.debug_barrier()
    return tl.sum(wanted.to(tl.int32), 0)


@triton.jit
def gather(logits, slot, masks, n_words, n_vocab, stretches, n_stretches, low, values, ids_out):
    """Write the logits that reach `low`, and their ids, in order; return how many, about if too many."""
    total = 0
    first = 0
    while (first < n_stretches) & (total <= CANDIDATES):
        at = first + tl.arange(0, LIST_TILE)
        stretch = tl.load(stretches + at, mask=at < n_stretches, other=NONE // STRETCH)
        ids = stretch[:, None] * STRETCH + tl.arange(0, STRETCH)[None, :]
        inside = ids < n_vocab
        x = tl.load(logits + ids, mask=inside, other=float("-inf"))
        x = allowed(x, ids, inside, masks, slot, n_words)
        x = tl.reshape(x, LIST_TILE * STRETCH)
        ids = tl.reshape(ids, LIST_TILE * STRETCH)
        wanted = (x >= low) & (x > float("-inf"))
        place = total + tl.cumsum(wanted.to(tl.int32), 0) - 1
        wanted_here = wanted & (place < CANDIDATES)
        tl.store(values + place, x, mask=wanted_here)
        tl.store(ids_out + place, ids, mask=wanted_here)
        total += tl.sum(wanted.to(tl.int32), 0)
        first += LIST_TILE
    tl.debug_barrier()
    return total


@triton.jit
def draw(values, ids, shares, n, temperature, top, k, top_p, least, enough, uniform, N: tl.constexpr):
    """A token of n ≤ N candidates; with a negative `enough` top-p is of what top-k leaves. And their weight.

    `values` and `shares` hold the tempered logits and their weights afterwards.
    """
    BLOCK: tl.constexpr = 4096 // N
    at = tl.arange(0, N)
    tempered = tl.div_rn(tl.load(values + at, mask=at < n, other=float("-inf")), temperature)
    weight = tl.where(at < n, compute_weight(tempered, top), 0.0)
    tl.debug_barrier()
    tl.store(values + at, tempered, mask=at < n)
    tl.store(shares + at, weight, mask=at < n)
    tl.debug_barrier()
    rank = tl.zeros([N], tl.int32)  # how many come before it
    before = tl.zeros([N], tl.float64)  # and what they weigh
    for first in range(0, n, BLOCK):
        other = first + tl.arange(0, BLOCK)
        x = tl.load(values + other, mask=other < n, other=float("-inf"))[None, :]
        share = tl.load(shares + other, mask=other < n, other=0.0)[None, :]
        earlier = (x > tempered[:, None]) | ((x == tempered[:, None]) & (other[None, :] < at[:, None]))
        rank += tl.sum(earlier.to(tl.int32), 1)
        before += tl.sum(tl.where(earlier, share, 0.0), 1)
    everything = tl.sum(weight, 0)
    keep = (at < n) & (rank < k)
    if enough < 0:
        enough = top_p * tl.sum(tl.where(keep, weight, 0.0), 0)
    if top_p < 1.0:
        keep = keep & (before < enough)
    keep = keep & (tempered >= least)
    line = tl.cumsum(tl.where(keep, weight, 0.0), 0)
    target = uniform * tl.max(line, 0)
    chosen = tl.min(tl.where(keep & (line > target), at, NONE), 0)
    chosen = tl.where(chosen == NONE, tl.max(tl.where(keep, at, -1), 0), chosen)
    return tl.load(ids + chosen), everything


@triton.jit
def wrong(peak):
    """The code of what is wrong with a row, or 0; and its best logit."""
    best = tl.max(tl.where(peak != peak, float("-inf"), peak), 0)
    has_nan = tl.max((peak != peak).to(tl.int32), 0)
    code = tl.where(best == float("inf"), HAS_INFINITY, 0)
    code = tl.where(best == float("-inf"), NOTHING_LEFT, code)
    return tl.where(has_nan != 0, HAS_NAN, code), best


@triton.jit(do_not_specialize=["n_vocab", "n_peaks", "n_words", "n_next"])
def select(
    block, peaks, masks, stretches, weights, values, ids, shares, lows, tokens, following, steps,
    n_vocab, n_peaks, n_words, PEAKS: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """The token of each row, `WIDE`, or a code; with `LIST` how many candidates were written for the top k.

    `following` gets the token too (0 for an error): it may be the next step's input. `steps` counts the draws
    from streams of random numbers.
    """
    row = tl.program_id(0)
    at = tl.arange(0, PEAKS)
    token = 0
    if tl.load(block + row * WORDS) != 0:
        logits, slot = locate_row(peaks, block, row)
        temperature, log_min_p, top_k, top_p = load_params(block, row)
        peak = tl.load(peaks + row * n_peaks + at, mask=at < n_peaks, other=float("-inf"))
        code, best = wrong(peak)
        stretches += row * n_peaks
        values += row * CANDIDATES
        ids += row * CANDIDATES
        shares += row * CANDIDATES
        few = (top_k > 0) & (top_k < n_vocab)
        if LIST:
            if code == 0:
                low = bound_by_peaks(peak, best, top_k)
                n = list_stretches(peak, low, at, stretches)
                code = gather(logits, slot, masks, n_words, n_vocab, stretches, n, low, values, ids)
            token = code
        elif code != 0:
            token = code
        elif temperature == 0:
            token = first_best(logits, slot, masks, n_words, n_vocab, peak, best, at)
        elif (few | (top_p < 1.0) | (log_min_p > float("-inf"))) == 0:
            token = WIDE
        else:
            top = tl.div_rn(best, temperature)
            least = top + log_min_p
            floor = a_little_below(least * temperature)
            floor = tl.where(few, float("-inf"), floor)
            uniform = draw_uniform(block, row, tl.load(steps))
            enough = uniform * 0.0 - 1.0
            k = top_k
            bound = top_k
            if few == 0:
                k = NONE
                bound = tl.where(top_p < 1.0, FIRST_BOUND, NONE)
                if top_p < 1.0:
                    share = tl.load(weights + row * n_peaks + at, mask=at < n_peaks, other=0.0)
                    enough = top_p * tl.sum(share.to(tl.float64), 0)
            tl.store(lows + row, floor)
            token = NONE
            while token == NONE:
                low = floor
                if bound <= n_peaks:
                    low = tl.maximum(floor, a_little_below(bound_by_peaks(peak, best, bound)))
                if few:
                    tl.store(lows + row, low)
                n_stretches = list_stretches(peak, low, at, stretches)
                n = gather(logits, slot, masks, n_words, n_vocab, stretches, n_stretches, low, values, ids)
                found = WIDE + 0
                everything = enough
                if n <= FEW:
                    found, everything = draw(
                        values, ids, shares, n, temperature, top, k, top_p, least, enough, uniform, FEW
                    )
                elif n <= CANDIDATES:
                    found, everything = draw(
                        values, ids, shares, n, temperature, top, k, top_p, least, enough, uniform, CANDIDATES
                    )
                suffices = few | (top_p >= 1.0) | (low <= floor) | (everything >= enough) | (n > CANDIDATES)
                if suffices:
                    token = found
                bound = tl.where(bound < NONE // 8, bound * 8, bound)
    tl.store(tokens + row, token)
    tl.store(following + row, tl.maximum(token, 0))


# Kernels beside sampling: penalties and bias on single logits, and the sums of log-probabilities.

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"


@triton.jit(do_not_specialize=["n"])
def change(entries, saved, n, RESTORE: tl.constexpr, BLOCK: tl.constexpr):
    """Change single logits in place and keep what they were; or put that back.

    An entry is five words: the address (two), the repetition penalty, what is subtracted, what is added.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    low = tl.load(entries + at * 5, mask=inside, other=0).to(tl.int64) & 0xFFFFFFFF
    high = tl.load(entries + at * 5 + 1, mask=inside, other=0).to(tl.int64)
    logit = (low | (high << 32)).to(tl.pointer_type(tl.float32))
    if RESTORE:
        tl.store(logit, tl.load(saved + at, mask=inside), mask=inside)
    else:
        x = tl.load(logit, mask=inside, other=0.0)
        tl.store(saved + at, x, mask=inside)
        repetition = tl.load(entries + at * 5 + 2, mask=inside, other=0).to(tl.float32, bitcast=True)
        minus = tl.load(entries + at * 5 + 3, mask=inside, other=0).to(tl.float32, bitcast=True)
        plus = tl.load(entries + at * 5 + 4, mask=inside, other=0).to(tl.float32, bitcast=True)
        x = tl.where(x > 0.0, tl.div_rn(x, repetition), x * repetition)
        x = x - minus
        x = x + plus
        tl.store(logit, x, mask=inside)


@triton.jit(do_not_specialize=["n_vocab", "n_peaks", "n_words", "n_parts"])
def sum_exponentials(
    block, peaks, masks, sums, n_vocab, n_peaks, n_words, n_parts, PEAKS: tl.constexpr, TILE: tl.constexpr
):
    """float64[rows, parts + 1]: sums of e^(x − best) over parts of a row, and the logit of a token.

    The token stands where the parameters of sampling have the number of a draw.
    """
    row, part = tl.program_id(1), tl.program_id(0)
    logits, slot = locate_row(peaks, block, row)
    every = tl.arange(0, PEAKS)
    best = tl.max(tl.load(peaks + row * n_peaks + every, mask=every < n_peaks, other=float("-inf")), 0)
    total = tl.zeros([STRETCH], tl.float64)
    for i in range(TILE):
        ids = (part * TILE + i) * STRETCH + tl.arange(0, STRETCH)
        x = tl.load(logits + ids, mask=ids < n_vocab, other=float("-inf"))
        x = allowed(x, ids, ids < n_vocab, masks, slot, n_words)
        total += tl.exp(x.to(tl.float64) - best.to(tl.float64))
    sums += row * (n_parts + 1)
    tl.store(sums + part, tl.sum(total, 0))
    if part == 0:
        token = tl.load(block + row * WORDS + 5)
        tl.store(sums + n_parts, tl.load(logits + token).to(tl.float64))
