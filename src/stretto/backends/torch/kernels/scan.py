"""The recurrence of heads over the rows of each slot, and the norm and gate behind it.

A program has some value columns of one head and one slot: that part of its matrix stays in registers while
the rows pass in order. A single row is the same program with one round, so it gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.kernels.convolve import sigmoid
from stretto.backends.torch.kernels.early import await_inputs


@triton.jit
def loaded(pointers, ok, ALL: tl.constexpr):
    """Numbers, 0 where there is none; no mask where ALL are there."""
    return tl.load(pointers) if ALL else tl.load(pointers, mask=ok, other=0.0)


@triton.jit(do_not_specialize=["bounds", "slots", "one"])
def scan(mixed, numbers, out, bounds, slots, states, skip, one, STATE: tl.constexpr, HISTORY: tl.constexpr,
         CHANNELS: tl.constexpr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEYS: tl.constexpr,
         SIZE: tl.constexpr, WRITE: tl.constexpr, READ: tl.constexpr, VALUES: tl.constexpr,
         KEY_STRIDE: tl.constexpr, VALUE_STRIDE: tl.constexpr, DELTA: tl.constexpr, TILED: tl.constexpr,
         BK: tl.constexpr, BV: tl.constexpr, AHEAD: tl.constexpr, SPREAD: tl.constexpr):  # fmt: skip
    """out float32[n, HEADS × SIZE] in the order of runs: what each row reads of its head's matrix.

    The matrix S becomes decay × S + key × change, and is read with the query. Both are products with the
    matrix before: S' query = decay × S query + (key query) × change, so one round waits for one sum only.

    SPREAD: a thread has keys of one column, so that sums pass through fewer threads; `one` is 1, which the
    compiler must not know, or it gives threads as many columns as one load can have.
    """
    run, head = tl.program_id(2), tl.program_id(1)
    begin, end = tl.load(bounds + run), tl.load(bounds + run + 1)
    if begin < end:
        key_head = head % KEY_HEADS if TILED else head // (HEADS // KEY_HEADS)
        i = tl.arange(0, BK)
        j = tl.program_id(0) * BV + tl.arange(0, BV)
        state = (
            states + tl.load(slots + run).to(tl.int64) * STATE + HISTORY + head.to(tl.int64) * (KEYS * SIZE)
        )
        offset = j[:, None] * VALUE_STRIDE + i[None, :] * KEY_STRIDE
        if SPREAD:
            offset *= one
        at = state + offset
        ok = (j < SIZE)[:, None] & (i < KEYS)[None, :]
        matrix = loaded(at, ok, (KEYS == BK) & (SIZE % BV == 0))
        if not DELTA:
            its_skip = tl.load(skip + head)
        first = mixed + begin.to(tl.int64) * CHANNELS
        keys, queries = first + WRITE + key_head * KEYS + i, first + READ + key_head * KEYS + i
        values = first + VALUES + head * SIZE + j
        scalars = numbers + (begin.to(tl.int64) * HEADS + head) * 4
        results = out + (begin.to(tl.int64) * HEADS + head) * SIZE + j
        for t in tl.range(0, end - begin, num_stages=AHEAD):
            key = loaded(keys + t * CHANNELS, i < KEYS, KEYS == BK)
            query = loaded(queries + t * CHANNELS, i < KEYS, KEYS == BK)
            value = loaded(values + t * CHANNELS, j < SIZE, SIZE % BV == 0)
            its = scalars + t * (HEADS * 4)
            decay, gain, overlap = tl.load(its), tl.load(its + 1), tl.load(its + 2)
            read = tl.sum(matrix * query[None, :], 1)
            if DELTA:
                told = tl.sum(matrix * key[None, :], 1)
                change = gain * tl.fma(-decay, told, value)
                result = tl.fma(decay, read, overlap * change)
            else:
                change = gain * value
                result = tl.fma(its_skip, value, tl.fma(decay, read, overlap * change))
            matrix = tl.fma(change[:, None], key[None, :], matrix * decay)
            tl.store(results + t * (HEADS * SIZE), result, mask=j < SIZE)
        tl.store(at, matrix, mask=ok)


@triton.jit(do_not_specialize=["rows", "bounds", "count"])
def gate(x, z, out, weight, rows, bounds, count, stride, eps, GROUPS: tl.constexpr, SIZE: tl.constexpr,
         FIRST: tl.constexpr, NORM: tl.constexpr, SHARED: tl.constexpr, BG: tl.constexpr,
         BLOCK: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """out = norm(x) × silu(z), or norm(x × silu(z)) with FIRST, over each of GROUPS groups of a row.

    x is in the order of runs. SHARED: all groups have the same weights. Rows of padding become 0.
    """
    await_inputs(EARLY)
    place = tl.program_id(0)
    g, i = tl.program_id(1) * BG + tl.arange(0, BG), tl.arange(0, BLOCK)
    c = g[:, None] * SIZE + i[None, :]
    ok = (g < GROUPS)[:, None] & (i < SIZE)[None, :]
    row = tl.load(rows + place).to(tl.int64)
    known = ok & (place < tl.load(bounds + count))
    v = tl.load(x + place.to(tl.int64) * (GROUPS * SIZE) + c, mask=known, other=0.0)
    s = tl.load(z + row * stride + c, mask=known, other=0.0).to(tl.float32)
    s = s * sigmoid(s)
    if FIRST:
        v *= s
    if NORM:
        v = v / tl.sqrt(tl.sum(v * v, 1) / SIZE + eps)[:, None]
        v *= tl.load(weight + (i[None, :] + c * 0 if SHARED else c), mask=ok, other=0.0)
    if not FIRST:
        v *= s
    tl.store(out + row * (GROUPS * SIZE) + c, v.to(out.dtype.element_ty), mask=ok)
