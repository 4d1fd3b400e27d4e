"""Attention over cells of views, in Triton. `work` says what items are; `attend_launch` launches.

Each number of a result is one reduction in one order, whatever tile it is computed in: a span is walked in
turns of BLOCK entries, with a new maximum each; sums over entries are products, since the order of `tl.sum`
depends on the number of warps; spans are joined in order. No multiplication and addition are fused but by
`tl.fma`.

Heads whose size is not a power of two are two pieces: the first 2ᵏ numbers and the padded rest (D2, E2).
PAIRED heads, of 8 bits, are even and odd numbers apart (see `operands`): D1 and D2 count pairs, E1 = E2 are
the even and the odd ones.
"""

import triton
import triton.language as tl

from stretto.backends.torch.kernels.early import await_inputs

# K, V and queries as operands of attention's products, in Triton.
#
# A product's bits depend on which 16 numbers a tensor core adds at once. The compiler reorders the numbers
# of operands that were loaded as 8 bits, and only for some instructions, so prompts and single rows would
# differ. Heads of 8 bits are therefore loaded as pairs, 16 bits each, and multiplied as two heads: even
# numbers, and odd ones.

PAIR_BLOCK = tl.constexpr(16)  # pairs of one scale

# Two pairs of integers → 1024 + 128 + number in float16, by its bits; less 1152; times the scales.
Q8_PAIRS = tl.constexpr("""{
.reg .b32 a, b, c, d;
xor.b32 a, $2, 0x80808080;
mov.b32 b, 0x64646464;
mov.b32 d, 0x64806480;
prmt.b32 c, a, b, 0x4240;
sub.rn.f16x2 c, c, d;
mul.rn.f16x2 $0, c, $3;
prmt.b32 c, a, b, 0x4341;
sub.rn.f16x2 c, c, d;
mul.rn.f16x2 $1, c, $3;
}""")
FP8_PAIRS = tl.constexpr("""{
.reg .b16 a, b;
.reg .b32 c, d;
mov.b32 {a, b}, $2;
cvt.rn.f16x2.e4m3x2 c, a;
cvt.rn.f16x2.e4m3x2 d, b;
prmt.b32 $0, c, d, 0x5410;
prmt.b32 $1, c, d, 0x7632;
}""")


@triton.jit
def piece_of(plane, at, FIRST: tl.constexpr, SIZE: tl.constexpr, REAL: tl.constexpr):
    """Numbers FIRST … FIRST + SIZE of heads [entries, SIZE]; beyond REAL they are 0."""
    d = FIRST + tl.arange(0, SIZE)
    where = plane + at[:, None] + d[None, :]
    return tl.load(where, mask=(d < REAL)[None, :], other=0.0) if FIRST + SIZE > REAL else tl.load(where)


@triton.jit
def pairs_of(
    plane, scales, at, scales_at,
    FIRST: tl.constexpr, SIZE: tl.constexpr, REAL: tl.constexpr, Q8: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Pairs FIRST … FIRST + SIZE of 8-bit heads, of which there are REAL: even and odd numbers, float16.

    `at` counts pairs. FAST: by PTX of ours, which the interpreter does not have.
    """
    i = FIRST + tl.arange(0, SIZE)
    where = plane.to(tl.pointer_type(tl.int16)) + at[:, None] + i[None, :]
    found = tl.load(where, mask=(i < REAL)[None, :], other=0) if FIRST + SIZE > REAL else tl.load(where)
    if Q8:
        COUNT: tl.constexpr = SIZE // PAIR_BLOCK
        b = FIRST // PAIR_BLOCK + tl.arange(0, COUNT)
        there = (b * PAIR_BLOCK < REAL)[None, :]
        factor = tl.load(scales + scales_at[:, None] + b[None, :], mask=there, other=0.0)
        factor = factor[:, :, None].broadcast_to(found.shape[0], COUNT, PAIR_BLOCK)
        factor = factor.reshape(found.shape[0], SIZE)
        if FAST:
            even, odd = tl.inline_asm_elementwise(
                Q8_PAIRS, "=r,=r,r,r", [found, factor], (tl.float16, tl.float16), True, 2
            )
        else:
            even = ((found << 8) >> 8).to(tl.float16) * factor
            odd = (found >> 8).to(tl.float16) * factor
    elif FAST:
        even, odd = tl.inline_asm_elementwise(
            FP8_PAIRS, "=r,=r,r", [found], (tl.float16, tl.float16), True, 2
        )
    else:
        STORED: tl.constexpr = plane.dtype.element_ty
        even = (found & 255).to(tl.uint8).to(STORED, bitcast=True).to(tl.float16)
        odd = ((found >> 8) & 255).to(tl.uint8).to(STORED, bitcast=True).to(tl.float16)
    return even, odd


@triton.jit
def query(
    at, valid, FIRST: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr, REAL: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    """Every STEPth number of queries from FIRST on, [rows, SIZE] in TYPE; beyond REAL they are 0."""
    d = FIRST + tl.arange(0, SIZE) * STEP
    there = valid[:, None]
    if FIRST + (SIZE - 1) * STEP >= REAL:
        there = there & (d < REAL)[None, :]
    return tl.load(at[:, None] + d[None, :], mask=there, other=0.0).to(TYPE)


LOG2E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(float("-inf"))


@triton.jit
def take_turn(
    top, total, mix1, mix2, turn, stop,
    q1, q2, q3, q4, keys, values, key_scales, value_scales, view, places,
    firsts, lengths, latest, shortest, positions, slopes, h, scale, cap,
    KC: tl.constexpr, KH: tl.constexpr, VC: tl.constexpr, VH: tl.constexpr,
    KSC: tl.constexpr, KSH: tl.constexpr, VSC: tl.constexpr, VSH: tl.constexpr,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, DV: tl.constexpr, E1: tl.constexpr, E2: tl.constexpr,
    BLOCK: tl.constexpr, PAIRED: tl.constexpr, Q8: tl.constexpr, FAST: tl.constexpr, TIED: tl.constexpr,
    CAP: tl.constexpr, ALIBI: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Rows' running maximum (of scores × log₂ e), sum and mix with BLOCK entries more, up to `stop`."""
    i = turn + tl.arange(0, BLOCK)
    # Entries beyond the last read its cell again, so that no loads of K and V need a mask.
    entry = tl.minimum(i, stop - 1)
    cell = tl.load(view + entry).to(tl.int64)
    if PAIRED:
        k_at = cell * (KC // 2) + h * (KH // 2)
        k_scales_at = cell * KSC + h * KSH
        k1, k2 = pairs_of(keys, key_scales, k_at, k_scales_at, 0, D1, D // 2, Q8, FAST)
        s = tl.dot(q1, tl.trans(k1))
        s = tl.dot(q2, tl.trans(k2), s)
        if D2:
            k3, k4 = pairs_of(keys, key_scales, k_at, k_scales_at, D1, D2, D // 2, Q8, FAST)
            s = tl.dot(q3, tl.trans(k3), s)
            s = tl.dot(q4, tl.trans(k4), s)
    else:
        k_at = cell * KC + h * KH
        k1 = piece_of(keys, k_at, 0, D1, D)
        k2 = k1
        s = tl.dot(q1, tl.trans(k1), input_precision="ieee")
        if D2:
            s = tl.dot(q3, tl.trans(piece_of(keys, k_at, D1, D2, D)), s, input_precision="ieee")
    factor = scale * LOG2E
    if CAP:  # tanh u = 2 / (1 + e^−2u) − 1
        s = 2.0 / (1.0 + tl.exp2(s * (scale / cap * (-2.0 * LOG2E)))) - 1.0
        factor = cap * LOG2E
    if ALIBI:
        distance = tl.abs(tl.load(places + entry)[None, :] - positions[:, None]).to(tl.float32)
        s = tl.fma(s, factor, distance * slopes[:, None])
        factor = 1.0
    if (turn < latest) | (turn + BLOCK > tl.minimum(shortest, stop)):  # some row skips some entry
        ends = tl.minimum(lengths, stop)
        s = tl.where((i[None, :] >= firsts[:, None]) & (i[None, :] < ends[:, None]), s, NEVER)
    most = tl.maximum(top, tl.max(s, 1) * factor)
    safe = tl.where(most == NEVER, 0.0, most)
    p = tl.exp2(tl.fma(s, factor, -safe[:, None])).to(TYPE)
    fade = tl.exp2(top - safe)
    sums = tl.max(tl.dot(p, tl.full([BLOCK, 16], 1.0, TYPE), input_precision="ieee"), 1)
    total = tl.fma(total, fade, sums)
    if PAIRED:
        v1, v2 = k1, k2
        if not TIED:
            v_at = cell * (VC // 2) + h * (VH // 2)
            v_scales_at = cell * VSC + h * VSH
            v1, v2 = pairs_of(values, value_scales, v_at, v_scales_at, 0, E1, DV // 2, Q8, FAST)
        mix1 = tl.dot(p, v1, mix1 * fade[:, None])
        mix2 = tl.dot(p, v2, mix2 * fade[:, None])
    else:
        v_at = cell * VC + h * VH
        v1 = k1 if TIED else piece_of(values, v_at, 0, E1, DV)
        mix1 = tl.dot(p, v1, mix1 * fade[:, None], input_precision="ieee")
        if E2:
            v2 = piece_of(values, v_at, E1, E2, DV)
            mix2 = tl.dot(p, v2, mix2 * fade[:, None], input_precision="ieee")
    return most, total, mix1, mix2


@triton.jit
def nothing(MT: tl.constexpr, E1: tl.constexpr, E2: tl.constexpr):
    """The result of no entries."""
    top = tl.full([MT], NEVER, tl.float32)
    mix2 = tl.zeros([MT, E2 if E2 else 16], tl.float32)
    return top, tl.zeros([MT], tl.float32), tl.zeros([MT, E1], tl.float32), mix2


@triton.jit
def join(top, total, mix1, mix2, m, l, a1, a2):
    """The results of some entries, and of those behind them, as one."""
    most = tl.maximum(top, m)
    safe = tl.where(most == NEVER, 0.0, most)
    f = tl.exp2(top - safe)
    g = tl.exp2(m - safe)
    mix1 = tl.fma(mix1, f[:, None], a1 * g[:, None])
    mix2 = tl.fma(mix2, f[:, None], a2 * g[:, None])
    return most, tl.fma(total, f, l * g), mix1, mix2


@triton.jit
def columns(
    at,
    valid,
    SECOND: tl.constexpr,
    DV: tl.constexpr,
    E1: tl.constexpr,
    E2: tl.constexpr,
    PAIRED: tl.constexpr,
):
    """Where the first or the SECOND piece of heads at `at` is [rows, E1 or E2], and which of it there is."""
    if SECOND:
        d = 1 + tl.arange(0, E2) * 2 if PAIRED else E1 + tl.arange(0, E2)
    else:
        d = tl.arange(0, E1) * (2 if PAIRED else 1)
    there = valid[:, None]
    if SECOND or E1 * (2 if PAIRED else 1) > DV:
        there = there & (d < DV)[None, :]
    return at[:, None] + d[None, :], there


@triton.jit
def fetch(
    sums, mixes, slot, valid, DV: tl.constexpr, E1: tl.constexpr, E2: tl.constexpr, PAIRED: tl.constexpr
):
    """A partial result, or one that changes nothing."""
    m = tl.load(sums + slot * 2, mask=valid, other=NEVER, cache_modifier=".cg")
    l = tl.load(sums + slot * 2 + 1, mask=valid, other=0.0, cache_modifier=".cg")
    at = mixes + slot.to(tl.int64) * DV
    where, there = columns(at, valid, False, DV, E1, E2, PAIRED)
    a1 = tl.load(where, mask=there, other=0.0, cache_modifier=".cg")
    a2 = tl.zeros([valid.shape[0], E2 if E2 else 16], tl.float32)
    if E2:
        where, there = columns(at, valid, True, DV, E1, E2, PAIRED)
        a2 = tl.load(where, mask=there, other=0.0, cache_modifier=".cg")
    return m, l, a1, a2


@triton.jit
def put(at, mix1, mix2, valid, DV: tl.constexpr, E1: tl.constexpr, E2: tl.constexpr, PAIRED: tl.constexpr):
    """Store the pieces of heads at at[rows]."""
    where, there = columns(at, valid, False, DV, E1, E2, PAIRED)
    tl.store(where, mix1.to(at.dtype.element_ty), mask=there)
    if E2:
        where, there = columns(at, valid, True, DV, E1, E2, PAIRED)
        tl.store(where, mix2.to(at.dtype.element_ty), mask=there)


@triton.jit
def finish(
    where, sinks, head, top, total, mix1, mix2, valid,
    DV: tl.constexpr, E1: tl.constexpr, E2: tl.constexpr, PAIRED: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Store rows whose entries have all been summed."""
    if SINKS:
        sink = tl.load(sinks + head, mask=valid, other=0.0) * LOG2E
        most = tl.maximum(top, sink)
        fade = tl.exp2(top - most)
        total = tl.fma(total, fade, tl.exp2(sink - most))
        mix1 = mix1 * fade[:, None]
        mix2 = mix2 * fade[:, None]
    total = tl.where(valid, total, 1.0)
    put(where, mix1 / total[:, None], mix2 / total[:, None], valid, DV, E1, E2, PAIRED)


# The arrays of a step may lie anywhere in one block: their alignment must not make another kernel.
@triton.jit(
    do_not_specialize=[
        "data", "head", "views", "places", "row_positions", "row_firsts", "row_lengths", "slot0", "spans",
        "wait",
    ]
)  # fmt: skip
def attend(
    q, keys, values, key_scales, value_scales, out, sinks, alibi,
    data, head, views, places, row_positions, row_firsts, row_lengths, slot0, spans, wait,
    mixes, sums, counters, scale, cap,
    QN: tl.constexpr, QH: tl.constexpr, ON: tl.constexpr,
    KC: tl.constexpr, KH: tl.constexpr, VC: tl.constexpr, VH: tl.constexpr,
    KSC: tl.constexpr, KSH: tl.constexpr, VSC: tl.constexpr, VSH: tl.constexpr,
    H: tl.constexpr, HK: tl.constexpr, GT: tl.constexpr, ROWS: tl.constexpr, MT: tl.constexpr,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, DV: tl.constexpr, E1: tl.constexpr, E2: tl.constexpr,
    BLOCK: tl.constexpr, SPAN: tl.constexpr, ITEM: tl.constexpr, WHOLE: tl.constexpr, JOIN: tl.constexpr,
    Q8: tl.constexpr, FAST: tl.constexpr, TIED: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
    ALIBI: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Items of up to ROWS rows, each for a K/V head and a tile of GT of its heads.

    WHOLE: an item is all that its rows attend to (prompt). Otherwise it gives partial results of one span,
    and with JOIN (single) the last item of a row joins them all.
    """
    STORED: tl.constexpr = keys.dtype.element_ty
    PAIRED: tl.constexpr = STORED.primitive_bitwidth == 8
    TYPE: tl.constexpr = tl.float16 if PAIRED else STORED
    G: tl.constexpr = H // HK
    TILES: tl.constexpr = (G + GT - 1) // GT
    m = tl.arange(0, MT)
    n = tl.load(head)
    first = data + tl.load(head + 1)
    for unit in range(tl.program_id(0), n * (HK * TILES), tl.num_programs(0)):
        index = unit // (HK * TILES)
        if WHOLE:  # the last rows of a prompt attend to most, so they come first
            index = n - 1 - index
        h = unit // TILES % HK
        g = unit % TILES * GT + m % GT
        item = first + index * (ITEM + ROWS)
        row = tl.load(item + ITEM + m // GT, mask=m // GT < ROWS, other=-1)
        valid = (row >= 0) & (g < G)
        row = tl.maximum(row, 0)
        of = h * G + g  # the head
        offset = tl.load(item)
        start = tl.load(item + 1)
        stop = tl.load(item + 2)
        span = tl.load(item + 3)
        firsts = tl.load(row_firsts + row, mask=valid, other=0)
        lengths = tl.load(row_lengths + row, mask=valid, other=1)
        latest = tl.max(firsts)
        shortest = tl.min(tl.where(valid, lengths, stop))
        positions = row
        slopes = tl.zeros([MT], tl.float32)
        if ALIBI:
            positions = tl.load(row_positions + row, mask=valid, other=0)
            slopes = tl.load(alibi + of, mask=valid, other=0.0) * -LOG2E
        slot = of
        one, expected, count, base = index, index, index, of
        if not WHOLE:
            slot = (tl.load(slot0 + row) + span) * H + of
        if JOIN:
            one = tl.load(item + ITEM)
            expected = tl.load(wait + one)
            count = tl.load(spans + one)
            base = (tl.load(slot0 + one) + tl.load(row_firsts + one) // SPAN) * H + of
        # So far everything was made at the beginning of the pass, several kernels ago.
        await_inputs(PDL)
        q_at = q + row.to(tl.int64) * QN + of * QH
        STEP: tl.constexpr = 2 if PAIRED else 1
        q1 = query(q_at, valid, 0, D1, STEP, D, TYPE)
        q2, q3, q4 = q1, q1, q1
        if PAIRED:
            q2 = query(q_at, valid, 1, D1, STEP, D, TYPE)
        if D2:
            q3 = query(q_at, valid, D1 * STEP, D2, STEP, D, TYPE)
            if PAIRED:
                q4 = query(q_at, valid, D1 * STEP + 1, D2, STEP, D, TYPE)
        where = out + row.to(tl.int64) * ON + of * DV
        top, total, mix1, mix2 = nothing(MT, E1, E2)
        whole_top, whole_total, whole_mix1, whole_mix2 = nothing(MT, E1, E2)
        for turn in range(start, stop, BLOCK):
            # One is known when the kernel is compiled.
            if WHOLE:  # noqa: SIM102
                if turn % SPAN == 0:
                    whole_top, whole_total, whole_mix1, whole_mix2 = join(
                        whole_top, whole_total, whole_mix1, whole_mix2, top, total, mix1, mix2
                    )
                    top, total, mix1, mix2 = nothing(MT, E1, E2)
            top, total, mix1, mix2 = take_turn(
                top, total, mix1, mix2, turn, stop,
                q1, q2, q3, q4, keys, values, key_scales, value_scales, views + offset, places + offset,
                firsts, lengths, latest, shortest, positions, slopes, h, scale, cap,
                KC, KH, VC, VH, KSC, KSH, VSC, VSH, D, D1, D2, DV, E1, E2,
                BLOCK, PAIRED, Q8, FAST, TIED, CAP, ALIBI, TYPE,
            )  # fmt: skip
        if WHOLE:
            top, total, mix1, mix2 = join(
                whole_top, whole_total, whole_mix1, whole_mix2, top, total, mix1, mix2
            )
            finish(where, sinks, of, top, total, mix1, mix2, valid, DV, E1, E2, PAIRED, SINKS)
        else:
            put(mixes + slot.to(tl.int64) * DV, mix1, mix2, valid, DV, E1, E2, PAIRED)
            tl.store(sums + slot * 2, top, mask=valid)
            tl.store(sums + slot * 2 + 1, total, mask=valid)
            if JOIN:
                counter = counters + (one * HK + h) * TILES + unit % TILES
                tl.debug_barrier()
                done = tl.atomic_add(counter, 1, sem="acq_rel")
                if done == expected - 1:
                    tl.store(counter, 0)
                    top, total, mix1, mix2 = nothing(MT, E1, E2)
                    for s in range(0, count, 4):  # four at a time, so that their loads overlap
                        at = base + s * H
                        m0, l0, a0, b0 = fetch(sums, mixes, at, valid, DV, E1, E2, PAIRED)
                        m1, l1, a1, b1 = fetch(
                            sums, mixes, at + H, valid & (s + 1 < count), DV, E1, E2, PAIRED
                        )
                        m2, l2, a2, b2 = fetch(
                            sums, mixes, at + 2 * H, valid & (s + 2 < count), DV, E1, E2, PAIRED
                        )
                        m3, l3, a3, b3 = fetch(
                            sums, mixes, at + 3 * H, valid & (s + 3 < count), DV, E1, E2, PAIRED
                        )
                        top, total, mix1, mix2 = join(top, total, mix1, mix2, m0, l0, a0, b0)
                        top, total, mix1, mix2 = join(top, total, mix1, mix2, m1, l1, a1, b1)
                        top, total, mix1, mix2 = join(top, total, mix1, mix2, m2, l2, a2, b2)
                        top, total, mix1, mix2 = join(top, total, mix1, mix2, m3, l3, a3, b3)
                    finish(where, sinks, of, top, total, mix1, mix2, valid, DV, E1, E2, PAIRED, SINKS)
    # The next kernel waits for this one alone: without items it has to last as long as the one before it.
    await_inputs(PDL)
