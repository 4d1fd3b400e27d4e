"""Launches of the kernels of recurrent mixers.

Tiles and warps depend on a mixer's sizes alone, never on the rows of a pass, so one compiled kernel computes
prompts and single steps. Where a multiplication and an addition are fused must not be left to the compiler:
it may fuse otherwise for another row of a tile, so these kernels are compiled without fusion (`EXACT`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from stretto.backends.torch.device import is_interpreting
from stretto.backends.torch.kernels.early import await_inputs, early_options
from stretto.backends.torch.launching import launch
from stretto.backends.torch.work import TILE
from stretto.models.mixers import Convolution, DeltaNet, Mamba2

# Short convolutions over the rows of each slot, and what recurrent heads are given by them.
#
# A program has a tile of rows of one slot and some channels. The program of a slot's first tile alone reads
# the history of its channels, and writes that of the next pass: the last inputs are in memory, so it need
# not wait.


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
    tile, part = tl.program_id(0), tl.program_id(1)
    # All this was made at the beginning of the pass, several kernels ago.
    run, first = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    n = tl.load(bounds + count)
    begin, end = tl.load(bounds + run), tl.load(bounds + run + 1)
    history = states + tl.load(slots + run).to(tl.int64) * STATE
    await_inputs(EARLY)
    if first < n:
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


# The recurrence of heads over the rows of each slot, and the norm and gate behind it.
#
# A program has some value columns of one head and one slot: that part of its matrix stays in registers
# while the rows pass in order. A single row is the same program with one round, so it gives the same bits.


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
    place = tl.program_id(0)
    g, i = tl.program_id(1) * BG + tl.arange(0, BG), tl.arange(0, BLOCK)
    c = g[:, None] * SIZE + i[None, :]
    ok = (g < GROUPS)[:, None] & (i < SIZE)[None, :]
    row = tl.load(rows + place).to(tl.int64)
    known = ok & (place < tl.load(bounds + count))
    await_inputs(EARLY)
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


CHANNELS = 128  # that a program convolves
LENGTH_EPSILON = 1e-6
MATRIX_NUMBERS = 2048  # of a head, that a program of `scan` has in registers at most
GATED_NUMBERS = 1024  # of a row, that a program normalises; one group at least


EXACT: dict[str, bool] = {} if is_interpreting() else {"enable_fp_fusion": False}


@dataclass(frozen=True)
class Heads:
    """Recurrent heads, whichever their mixer is; offsets are those of the convolution's channels."""

    n: int
    n_key: int
    key_size: int
    value_size: int
    write_at: int  # keys
    read_at: int  # queries
    values_at: int
    strides: tuple[int, int]  # of a head's matrix: from key to key, from value to value
    is_delta: bool
    is_tiled: bool = False
    is_fused: bool = False
    value_block: int = 8  # value columns of a program of `scan`
    warps: int = 1  # of that program
    ahead: int = 3  # rows in flight
    is_spread: bool = False  # columns over threads

    @property
    def inner(self) -> int:
        """Numbers that all heads give."""
        return self.n * self.value_size


def delta_heads(mixer: DeltaNet) -> Heads:
    """The heads of a delta net."""
    keys = mixer.n_key_head * mixer.key_size
    return Heads(
        mixer.n_value_head, mixer.n_key_head, mixer.key_size, mixer.value_size, keys, 0, 2 * keys,
        (mixer.value_size, 1), True, mixer.tiled, mixer.fused,
    )  # fmt: skip


def mamba_heads(mixer: Mamba2) -> Heads:
    """The heads of Mamba-2: B are the keys, C the queries."""
    write = mixer.inner
    return Heads(
        mixer.n_head, mixer.n_group, mixer.state_size, mixer.head_size, write,
        write + mixer.n_group * mixer.state_size, 0, (1, mixer.state_size), False,
    )  # fmt: skip


def delta_net(
    mixer: DeltaNet, w: Any, qkv: Any, z: Any, gates: Any, states: Any, runs: Any, dtype: Any
) -> Any:
    """As `stretto.backends.torch.recurrent_layer.delta_net` says."""
    heads = delta_heads(mixer)
    read = advance(heads, w, qkv, gates, states, runs)
    return gated(read, z, w.norm, mixer.norm.eps, heads.n, False, True, runs, dtype)


def mamba2(mixer: Mamba2, w: Any, projected: Any, states: Any, runs: Any, dtype: Any) -> Any:
    """As `stretto.backends.torch.recurrent_layer.mamba2` says."""
    z, inputs, steps = projected.split([mixer.inner, mixer.channels, mixer.n_head], 1)
    read = advance(mamba_heads(mixer), w, inputs, steps, states, runs)
    eps = 0.0 if mixer.norm is None else mixer.norm.eps
    return gated(read, z, w.norm, eps, mixer.n_group, True, False, runs, dtype)


def convolution(mixer: Convolution, w: Any, projected: Any, states: Any, runs: Any, dtype: Any) -> Any:
    """As `stretto.backends.torch.recurrent_layer.convolution` says."""
    out = torch.empty((len(projected), mixer.width), dtype=dtype, device=projected.device)
    if not len(out):
        return out
    grid = (runs.n_tiles, triton.cdiv(mixer.width, CHANNELS))
    launch(
        short, grid,
        projected, out, runs.rows, runs.bounds, runs.slots, runs.tiles, states, w.taps, runs.count,
        projected.stride(0), states.stride(0), mixer.width, mixer.kernel, _kept(w), TILE, CHANNELS,
        num_warps=4, **EXACT, **early_options(states.device),
    )  # fmt: skip
    return out


def advance(heads: Heads, w: Any, inputs: Any, gates: Any, states: Any, runs: Any) -> Any:
    """float32[n, inner], in the order of runs: what each row reads of its heads, whose states it advances."""
    n, (kernel, channels) = len(inputs), w.taps.shape
    mixed, numbers, out = (
        torch.empty(shape, dtype=torch.float32, device=inputs.device)
        for shape in ((n, channels), (n, heads.n, 4), (n, heads.inner))
    )
    if not n:
        return out
    state_floats = states.stride(0)
    at = (heads.write_at, heads.read_at, heads.values_at)
    keys = triton.next_power_of_2(heads.key_size)
    launch(
        mix, (runs.n_tiles, heads.n_key + triton.cdiv(heads.inner, CHANNELS)),
        inputs, gates, mixed, numbers, runs.rows, runs.bounds, runs.slots, runs.tiles, states, w.taps,
        w.taps if w.bias is None else w.bias, w.a, w.step_bias, runs.count, inputs.stride(0), gates.stride(0),
        state_floats, channels, kernel, _kept(w), w.bias is not None, heads.n, heads.n_key, heads.key_size,
        heads.inner, *at, heads.is_delta, heads.is_tiled, heads.is_fused, LENGTH_EPSILON,
        heads.key_size**-0.5, keys, CHANNELS, triton.next_power_of_2(heads.n // heads.n_key), TILE,
        num_warps=4 if keys <= 128 else 8, **EXACT, **early_options(states.device),
    )  # fmt: skip
    # Not launched early: the kernel behind it would come so early that it slows a prompt's scan 3.5 times.
    block = min(heads.value_block, triton.next_power_of_2(heads.value_size), max(1, MATRIX_NUMBERS // keys))
    launch(
        scan, (triton.cdiv(heads.value_size, block), heads.n, runs.count),
        mixed, numbers, out, runs.bounds, runs.slots, states, w.a if w.skip is None else w.skip, 1,
        state_floats, (kernel - 1) * channels, channels, heads.n, heads.n_key, heads.key_size,
        heads.value_size, *at, *heads.strides, heads.is_delta, heads.is_tiled, keys, block, heads.ahead,
        heads.is_spread, num_warps=heads.warps,
    )  # fmt: skip
    return out


def gated(
    x: Any, z: Any, weight: Any, eps: float, groups: int, first: bool, shared: bool, runs: Any, dtype: Any
) -> Any:
    """dtype[n, inner]: what heads gave, normalised by groups and gated, in the order of rows."""
    n, inner = x.shape
    out = torch.empty((n, inner), dtype=dtype, device=x.device)
    if not n:
        return out
    size = inner // groups
    block = triton.next_power_of_2(size)
    together = min(triton.next_power_of_2(groups), max(1, GATED_NUMBERS // block))
    launch(
        gate, (n, triton.cdiv(groups, together)),
        x, z, out, x if weight is None else weight, runs.rows, runs.bounds, runs.count, z.stride(0), eps,
        groups, size, first, weight is not None, shared, together, block, num_warps=4 if block <= 2048 else 8,
        **EXACT, **early_options(x.device),
    )  # fmt: skip
    return out


def _kept(w: Any) -> int:
    return int(triton.next_power_of_2(max(1, w.taps.shape[0] - 1)))
