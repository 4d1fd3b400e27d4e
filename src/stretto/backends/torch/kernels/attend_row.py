"""Attention of one row from its projection, in Triton: one kernel, made for latency, for `exact=False`.

What the row attends to is cut into pieces, more of them the longer it is, each a program for each K/V head;
one program more has the row's own entry, its last: it turns K, and stores K and V. All turn the queries that
they need, and load the cells that they begin with before they wait for the projection. The program that is
the last of a head to finish joins the results of all pieces.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.kernels.attend import LOG2E, NEVER, finish, piece_of
from stretto.backends.torch.kernels.early import await_inputs
from stretto.backends.torch.kernels.rowwise import angles, turned


@triton.jit
def count_pieces(n, BLOCK: tl.constexpr, FEW: tl.constexpr, MOST: tl.constexpr, TURNS: tl.constexpr):
    """How many pieces n entries are cut into, and how many entries each has.

    FEW pieces of whole blocks, as long as each has no more than TURNS blocks; then more, up to MOST.
    """
    blocks = tl.cdiv(n, BLOCK)
    wanted = tl.minimum(tl.maximum(tl.minimum(blocks, FEW), tl.cdiv(blocks, TURNS)), MOST)
    each = tl.cdiv(blocks, tl.maximum(wanted, 1)) * BLOCK
    return tl.cdiv(n, tl.maximum(each, 1)), each


@triton.jit
def block_of(keys, values, view, turn, stop, h, KC, KH, VC, VH, D: tl.constexpr, BLOCK: tl.constexpr):
    """K and V [BLOCK, D] of entries from `turn` on; beyond the last they are its own again."""
    cell = tl.load(view + tl.minimum(turn + tl.arange(0, BLOCK), stop - 1)).to(tl.int64)
    return piece_of(keys, cell * KC + h * KH, 0, D, D), piece_of(values, cell * VC + h * VH, 0, D, D)


@triton.jit
def join_pieces(
    out, sinks, mixes, sums, h, first_head, n,
    H: tl.constexpr, G: tl.constexpr, GT: tl.constexpr, D: tl.constexpr, JOINED: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    """Store what n pieces make for GT heads of a K/V head, JOINED pieces at a time."""
    d = tl.arange(0, D)
    g = first_head + tl.arange(0, GT)
    valid = g < G
    of = tl.minimum(h * G + g, H - 1)
    top = tl.full([GT], NEVER, tl.float32)
    total = tl.zeros([GT], tl.float32)
    mix = tl.zeros([GT, D], tl.float32)
    for first in range(0, n, JOINED):
        i = first + tl.arange(0, JOINED)
        at = i[:, None] * H + of[None, :]
        there = (i < n)[:, None] & valid[None, :]
        tops = tl.load(sums + at * 2, mask=there, other=NEVER, cache_modifier=".cg")
        totals = tl.load(sums + at * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
        where = mixes + at[:, :, None] * D + d[None, None, :]
        mixed = tl.load(where, mask=there[:, :, None], other=0.0, cache_modifier=".cg")
        most = tl.maximum(top, tl.max(tops, 0))
        safe = tl.where(most == NEVER, 0.0, most)  # of heads that do not exist
        fade = tl.exp2(top - safe)
        weights = tl.exp2(tops - safe[None, :])
        total = tl.fma(total, fade, tl.sum(weights * totals, 0))
        mix = mix * fade[:, None] + tl.sum(weights[:, :, None] * mixed, 0)
        top = most
    finish(out + of * D, sinks, of, top, total, mix, mix, valid, D, D, 0, False, SINKS)


# The arrays of a step may lie anywhere in one block: their alignment must not make another kernel.
@triton.jit(
    do_not_specialize=[
        "rotated", "cell_of_row", "views", "offsets", "row_positions", "row_firsts", "row_lengths"
    ]
)  # fmt: skip
def attend_row(
    qkv, keys, values, out, sinks, q_gain, k_gain, v_gain, cos, sin, rotated, axes, cell_of_row,
    views, offsets, row_positions, row_firsts, row_lengths, mixes, sums, counters, scale,
    q_eps, k_eps, v_eps, slope, length, offset, at_k, at_v,
    KC: tl.constexpr, KH: tl.constexpr, VC: tl.constexpr, VH: tl.constexpr,
    H: tl.constexpr, HK: tl.constexpr, GT: tl.constexpr, MT: tl.constexpr, D: tl.constexpr,
    PAIRS: tl.constexpr, ADJACENT: tl.constexpr, AXES: tl.constexpr,
    Q_NORM: tl.constexpr, Q_LAYER: tl.constexpr, Q_GAIN: tl.constexpr,
    K_NORM: tl.constexpr, K_LAYER: tl.constexpr, K_GAIN: tl.constexpr,
    V_NORM: tl.constexpr, V_GAIN: tl.constexpr, AFTER: tl.constexpr, WARM: tl.constexpr,
    BLOCK: tl.constexpr, FEW: tl.constexpr, MOST: tl.constexpr, TURNS: tl.constexpr, JOINED: tl.constexpr,
    SINKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (piece × HK + K/V head) × tiles + tile: a piece for a tile of GT heads of one K/V head."""
    TYPE: tl.constexpr = keys.dtype.element_ty
    G: tl.constexpr = H // HK
    TILES: tl.constexpr = (G + GT - 1) // GT
    unit = tl.program_id(0) % (HK * TILES)
    piece = tl.program_id(0) // (HK * TILES)
    h = unit // TILES
    m = tl.arange(0, MT)
    d = tl.arange(0, D)
    g = unit % TILES * GT + m % GT
    valid = (m < GT) & (g < G)
    of = tl.minimum(h * G + g, H - 1)  # the head
    begin = tl.load(row_firsts)
    last = tl.load(row_lengths) - 1
    pieces, each = count_pieces(last - begin, BLOCK, FEW, MOST, TURNS)
    if piece > pieces:
        await_inputs(PDL)
        return
    view = views + tl.load(offsets)
    start = tl.minimum(begin + piece * each, last)
    stop = tl.minimum(start + each, last)
    c, s = d * 1.0, d * 1.0
    if PAIRS > 0:
        c, s = angles(cos, sin, rotated, axes, 0, d, PAIRS, ADJACENT, AXES)
    warmth = 1.0
    if WARM:
        steps = tl.floor((tl.load(row_positions).to(tl.float32) + offset) / length)
        warmth = 1.0 + slope * tl.log(1.0 + steps)
    cell = tl.load(cell_of_row).to(tl.int64)
    # All that was read so far, and cells of the past, were written many kernels ago.
    k, v = block_of(keys, values, view, start, tl.maximum(stop, start + 1), h, KC, KH, VC, VH, D, BLOCK)
    await_inputs(PDL)
    there = valid[:, None] & (d < D)[None, :]
    q = turned(
        qkv, there, of, d, q_gain, c, s, q_eps, D,
        D, H, PAIRS, ADJACENT, Q_NORM, Q_LAYER, Q_GAIN, AFTER,
    )  # fmt: skip
    if WARM:
        q = q * warmth
    q = q.to(TYPE)
    factor = scale * LOG2E
    top = tl.full([MT], NEVER, tl.float32)
    total = tl.zeros([MT], tl.float32)
    mix = tl.zeros([MT, D], tl.float32)
    if piece == pieces:
        of_kv = h + tl.arange(0, 1)
        whole = (of_kv < HK)[:, None] & (d < D)[None, :]
        own_k = turned(
            qkv + at_k, whole, of_kv, d, k_gain, c, s, k_eps, D,
            D, HK, PAIRS, ADJACENT, K_NORM, K_LAYER, K_GAIN, AFTER,
        ).to(TYPE)  # fmt: skip
        own_v = turned(
            qkv + at_v, whole, of_kv, d, v_gain, c, s, v_eps, D,
            D, HK, 0, False, V_NORM, False, V_GAIN, False,
        ).to(TYPE)  # fmt: skip
        tl.store(keys + cell * KC + of_kv[:, None] * KH + d[None, :], own_k)
        tl.store(values + cell * VC + of_kv[:, None] * VH + d[None, :], own_v)
        top = tl.sum(q.to(tl.float32) * own_k.to(tl.float32), 1) * factor
        total = tl.full([MT], 1.0, tl.float32)
        mix = mix + own_v.to(tl.float32)
    else:
        for turn in range(start, stop, BLOCK):
            next_k, next_v = k, v
            if turn + BLOCK < stop:
                next_k, next_v = block_of(keys, values, view, turn + BLOCK, stop, h, KC, KH, VC, VH, D, BLOCK)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
            scores = tl.where((turn + tl.arange(0, BLOCK) < stop)[None, :], scores, NEVER)
            most = tl.maximum(top, tl.max(scores, 1))
            p = tl.exp2(scores - most[:, None]).to(TYPE)
            fade = tl.exp2(top - most)
            total = tl.fma(total, fade, tl.sum(p.to(tl.float32), 1))
            mix = tl.dot(p, v, mix * fade[:, None], input_precision="ieee")
            top = most
            k, v = next_k, next_v
    slot = piece * H + of
    tl.store(mixes + slot[:, None] * D + d[None, :], mix, mask=there)
    tl.store(sums + slot * 2, top, mask=valid)
    tl.store(sums + slot * 2 + 1, total, mask=valid)
    tl.debug_barrier()
    if tl.atomic_add(counters + unit, 1, sem="acq_rel") == pieces:
        tl.store(counters + unit, 0)
        join_pieces(out, sinks, mixes, sums, h, unit % TILES * GT, pieces + 1, H, G, GT, D, JOINED, SINKS)
