"""Short convolutions over the rows of each slot, and what recurrent heads are given by them.

A program has a tile of rows of one slot and some channels. The program of a slot's first tile alone reads the
history of its channels, and writes that of the next pass: the last inputs are in memory, so it need not wait.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.kernels.early import await_inputs


@triton.jit
def sigmoid(x):
    """1 / (1 + e^−x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """log(1 + e^x), also where e^x is small beside 1."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    log = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.maximum(x, 0.0) + log


@triton.jit
def inputs(x, rows, history, stride, at, begin, known, c, has,
           CHANNELS: tl.constexpr, KERNEL: tl.constexpr, GATE: tl.constexpr):  # fmt: skip
    """Inputs [places, channels] of a slot at places `at` of its run, those before `begin` from its history.

    With GATE an input is the product of two numbers of the row, so far apart.
    """
    fresh = (known & (at >= begin))[:, None] & has[None, :]
    row = tl.load(rows + at, mask=known & (at >= begin), other=0).to(tl.int64)
    new = tl.load(x + row[:, None] * stride + c[None, :], mask=fresh, other=0.0).to(tl.float32)
    if GATE > 0:
        new *= tl.load(x + row[:, None] * stride + GATE + c[None, :], mask=fresh, other=0.0).to(tl.float32)
    past = (known & (at < begin))[:, None] & has[None, :]
    old = tl.load(history + (at - begin + KERNEL - 1)[:, None] * CHANNELS + c[None, :], mask=past, other=0.0)
    return tl.where((at >= begin)[:, None], new, old)


@triton.jit
def convolved(x, rows, history, taps, bias, stride, first, begin, end, c, has,
              CHANNELS: tl.constexpr, KERNEL: tl.constexpr, KEPT: tl.constexpr, GATE: tl.constexpr,
              BIAS: tl.constexpr, T: tl.constexpr):  # fmt: skip
    """float32[T, channels] for the places from `first` on; the history becomes that of the next pass."""
    place = first + tl.arange(0, T)
    sums = tl.zeros([T, c.shape[0]], tl.float32)
    for back in tl.static_range(KERNEL):
        at = place - (KERNEL - 1) + back
        given = inputs(x, rows, history, stride, at, begin, place < end, c, has, CHANNELS, KERNEL, GATE)
        sums += given * tl.load(taps + back * CHANNELS + c, mask=has, other=0.0)[None, :]
    if BIAS:
        sums += tl.load(bias + c, mask=has, other=0.0)[None, :]
    if first == begin:
        i = tl.arange(0, KEPT)
        kept = i < KERNEL - 1
        last = inputs(x, rows, history, stride, end - (KERNEL - 1) + i, begin, kept, c, has,
                      CHANNELS, KERNEL, GATE)  # fmt: skip
        tl.debug_barrier()  # all threads have read the history
        tl.store(history + i[:, None] * CHANNELS + c[None, :], last, mask=kept[:, None] & has[None, :])
    return sums


@triton.jit(do_not_specialize=["rows", "bounds", "slots", "tiles", "count"])
def short(x, out, rows, bounds, slots, tiles, states, taps, count, stride, STATE: tl.constexpr,
          WIDTH: tl.constexpr, KERNEL: tl.constexpr, KEPT: tl.constexpr, T: tl.constexpr,
          BC: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """c × convolution(b × x) of a tile; x has b, c and x side by side. Rows of padding become 0."""
    await_inputs(EARLY)
    tile = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    has = c < WIDTH
    n = tl.load(bounds + count)
    if tile >= n:  # there are no more tiles than rows, so this one is empty, and row `tile` is padding
        tl.store(out + tile.to(tl.int64) * WIDTH + c, tl.zeros([BC], out.dtype.element_ty), mask=has)
    run, first = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    if first < n:
        begin, end = tl.load(bounds + run), tl.load(bounds + run + 1)
        history = states + tl.load(slots + run).to(tl.int64) * STATE
        sums = convolved(x, rows, history, taps, taps, stride, first, begin, end, c, has,
                         WIDTH, KERNEL, KEPT, 2 * WIDTH, False, T)  # fmt: skip
        place = first + tl.arange(0, T)
        ok = (place < end)[:, None] & has[None, :]
        row = tl.load(rows + place, mask=place < end, other=0).to(tl.int64)[:, None]
        gate = tl.load(x + row * stride + WIDTH + c[None, :], mask=ok, other=0.0).to(tl.float32)
        tl.store(out + row * WIDTH + c[None, :], (gate * sums).to(out.dtype.element_ty), mask=ok)


@triton.jit
def scalars(gates, numbers, overlap, rows, place, inside, key_head, a, step_bias, gate_stride,
            HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, DELTA: tl.constexpr, TILED: tl.constexpr,
            FUSED: tl.constexpr, BT: tl.constexpr, T: tl.constexpr):  # fmt: skip
    """Write decay, gain and `overlap` of the heads that have one key, for a tile's rows."""
    TIMES: tl.constexpr = HEADS // KEY_HEADS
    j = tl.arange(0, BT)
    head = key_head + j * KEY_HEADS if TILED else key_head * TIMES + j
    ok = inside[:, None] & (j < TIMES)[None, :]
    row = tl.load(rows + place, mask=inside, other=0).to(tl.int64)[:, None]
    its = gates + row * gate_stride
    slope = tl.load(a + head, mask=j < TIMES, other=0.0)[None, :]
    shift = tl.load(step_bias + head, mask=j < TIMES, other=0.0)[None, :]
    if DELTA:
        beta_at = key_head * 2 * TIMES + j if FUSED else head
        alpha_at = beta_at + TIMES if FUSED else HEADS + head
        step = softplus(tl.load(its + alpha_at[None, :], mask=ok, other=0.0).to(tl.float32) + shift)
        gain = sigmoid(tl.load(its + beta_at[None, :], mask=ok, other=0.0).to(tl.float32))
    else:
        step = softplus(tl.load(its + head[None, :], mask=ok, other=0.0).to(tl.float32) + shift)
        gain = step
    at = numbers + (place.to(tl.int64)[:, None] * HEADS + head[None, :]) * 4
    tl.store(at, tl.exp(slope * step), mask=ok)
    tl.store(at + 1, gain, mask=ok)
    tl.store(at + 2, overlap[:, None] + tl.zeros([T, BT], tl.float32), mask=ok)


@triton.jit(do_not_specialize=["rows", "bounds", "slots", "tiles", "count"])
def mix(x, gates, mixed, numbers, rows, bounds, slots, tiles, states, taps, bias, a, step_bias,
        count, stride, gate_stride, STATE: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr,
        KEPT: tl.constexpr, BIAS: tl.constexpr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr,
        KEYS: tl.constexpr, INNER: tl.constexpr, WRITE: tl.constexpr, READ: tl.constexpr,
        VALUES: tl.constexpr, DELTA: tl.constexpr, TILED: tl.constexpr, FUSED: tl.constexpr,
        EPSILON: tl.constexpr, SCALE: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr,
        T: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """What the heads of a tile's rows are given, in the order of runs.

    `mixed` float32[n, channels]: keys (WRITE), queries (READ) and values, convolved; those of a delta net
    have length 1, queries × SCALE. `numbers` float32[n, HEADS, 4]: decay, gain, key × query.
    """
    await_inputs(EARLY)
    tile, part = tl.program_id(0), tl.program_id(1)
    run, first = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    if first < tl.load(bounds + count):
        begin, end = tl.load(bounds + run), tl.load(bounds + run + 1)
        history = states + tl.load(slots + run).to(tl.int64) * STATE
        place = first + tl.arange(0, T)
        inside = place < end
        to = mixed + place.to(tl.int64)[:, None] * CHANNELS
        if part >= KEY_HEADS:
            c = (part - KEY_HEADS) * BC + tl.arange(0, BC)
            v = convolved(x, rows, history, taps, bias, stride, first, begin, end, VALUES + c, c < INNER,
                          CHANNELS, KERNEL, KEPT, 0, BIAS, T)  # fmt: skip
            tl.store(to + VALUES + c[None, :], v * sigmoid(v), mask=inside[:, None] & (c < INNER)[None, :])
        else:
            i = tl.arange(0, BK)
            has = i < KEYS
            ok = inside[:, None] & has[None, :]
            key, query = WRITE + part * KEYS + i, READ + part * KEYS + i
            k = convolved(x, rows, history, taps, bias, stride, first, begin, end, key, has,
                          CHANNELS, KERNEL, KEPT, 0, BIAS, T)  # fmt: skip
            q = convolved(x, rows, history, taps, bias, stride, first, begin, end, query, has,
                          CHANNELS, KERNEL, KEPT, 0, BIAS, T)  # fmt: skip
            k, q = k * sigmoid(k), q * sigmoid(q)
            if DELTA:
                k = k / tl.sqrt(tl.sum(k * k, 1) + EPSILON)[:, None]
                q = q / tl.sqrt(tl.sum(q * q, 1) + EPSILON)[:, None] * SCALE
            tl.store(to + key[None, :], k, mask=ok)
            tl.store(to + query[None, :], q, mask=ok)
            scalars(gates, numbers, tl.sum(k * q, 1), rows, place, inside, part, a, step_bias, gate_stride,
                    HEADS, KEY_HEADS, DELTA, TILED, FUSED, BT, T)  # fmt: skip
