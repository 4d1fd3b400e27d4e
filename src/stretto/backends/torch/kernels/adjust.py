# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""Kernels beside sampling: penalties and bias on single logits, and the sums of log-probabilities."""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.kernels.sample import STRETCH, WORDS, allowed, row_of


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
    logits, slot = row_of(peaks, block, row)
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
