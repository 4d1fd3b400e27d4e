"""Tiles of packed weights become numbers in registers: the part that fused products and widening share."""

import triton
import triton.language as tl


@triton.jit
def numbers(low, high, FORMAT: tl.constexpr, NT: tl.constexpr):
    """Words [32, 4, NT, 4] → 1 + number / 2^bits as float32: bits are put into the mantissa.

    The result is [32 lanes, 4 parts, NT, numbers of a lane]; that of MXFP4 is the number itself.
    """
    if FORMAT == 0:
        bits = (low.reshape(32, 4, NT, 4, 1) >> (tl.arange(0, 4) * 8)[None, None, None, None, :]) & 255
        t = (bits << 15).reshape(32, 4, NT, 16)
    else:
        bits = (low.reshape(32, 4, NT, 4, 1) >> (tl.arange(0, 8) * 4)[None, None, None, None, :]) & 15
        t = (bits << 19).reshape(32, 4, NT, 32)
        if FORMAT == 5:
            more = (high.reshape(32, 4, NT, 1, 1) >> tl.arange(0, 32)[None, None, None, None, :]) & 1
            t = (t >> 1) | (more.reshape(32, 4, NT, 32) << 22)
        elif FORMAT == 6:
            more = (high.reshape(32, 4, NT, 2, 1) >> (tl.arange(0, 16) * 2)[None, None, None, None, :]) & 3
            t = (t >> 2) | (more.reshape(32, 4, NT, 32) << 21)
    if FORMAT == 3:
        return e2m1(t >> 19)
    return (t | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def four_bits(low, scale, NT: tl.constexpr):
    """Q4_0's numbers in bfloat16, two at a time: [32, 4, NT, 4, 8] from words [32, 4, NT, 4].

    Two words are those of a row and the one 8 below. The outputs' first four are of the first word, and each
    has a column in the first word's place and the next column in the second's.

    The scale is split into its upper 8 bits and the rest. (number − 8) × rest is exact, and the sum with
    (number − 8) × upper is rounded once: the exact value rounded to bfloat16.
    """
    a0, a1, a2, a3, b0, b1, b2, b3 = tl.inline_asm_elementwise(
        """
        {
        .reg .b32 h, l, t, u, e, one, off, none;
        .reg .f32 f, g;
        mov.b32 one, 0x3F803F80;
        mov.b32 off, 0xC308C308;
        mov.b32 none, 0x80008000;
        prmt.b32 h, $10, $10, 0x3232;
        and.b32 t, $10, 0xFFFF0000;
        mov.b32 f, t;
        mov.b32 g, $10;
        sub.f32 g, g, f;
        mov.b32 t, g;
        prmt.b32 l, t, t, 0x3232;
        lop3.b32 u, $8, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 u, u, one, off;
        fma.rn.bf16x2 e, u, l, none;
        fma.rn.bf16x2 $0, u, h, e;
        shr.b32 t, $8, 4;
        lop3.b32 u, t, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 u, u, one, off;
        fma.rn.bf16x2 e, u, l, none;
        fma.rn.bf16x2 $1, u, h, e;
        shr.b32 t, $8, 8;
        lop3.b32 u, t, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 u, u, one, off;
        fma.rn.bf16x2 e, u, l, none;
        fma.rn.bf16x2 $2, u, h, e;
        shr.b32 t, $8, 12;
        lop3.b32 u, t, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 u, u, one, off;
        fma.rn.bf16x2 e, u, l, none;
        fma.rn.bf16x2 $3, u, h, e;
        prmt.b32 h, $11, $11, 0x3232;
        and.b32 t, $11, 0xFFFF0000;
        mov.b32 f, t;
        mov.b32 g, $11;
        sub.f32 g, g, f;
        mov.b32 t, g;
        prmt.b32 l, t, t, 0x3232;
        lop3.b32 u, $9, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 u, u, one, off;
        fma.rn.bf16x2 e, u, l, none;
        fma.rn.bf16x2 $4, u, h, e;
        shr.b32 t, $9, 4;
        lop3.b32 u, t, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 u, u, one, off;
        fma.rn.bf16x2 e, u, l, none;
        fma.rn.bf16x2 $5, u, h, e;
        shr.b32 t, $9, 8;
        lop3.b32 u, t, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 u, u, one, off;
        fma.rn.bf16x2 e, u, l, none;
        fma.rn.bf16x2 $6, u, h, e;
        shr.b32 t, $9, 12;
        lop3.b32 u, t, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 u, u, one, off;
        fma.rn.bf16x2 e, u, l, none;
        fma.rn.bf16x2 $7, u, h, e;
        }
        """,
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r",
        [low, scale],
        dtype=(tl.bfloat16,) * 8,
        is_pure=True,
        pack=2,
    )
    # not joined, from which the compiler would conclude another order of columns; the selection costs nothing
    k = tl.arange(0, 8)[None, None, None, None, :]
    a = select(select(a0, a1, k, 1, NT), select(a2, a3, k, 3, NT), k, 2, NT)
    b = select(select(b0, b1, k, 5, NT), select(b2, b3, k, 7, NT), k, 6, NT)
    return select(a, b, k, 4, NT)  # 32 columns and next; row + 8, 16 further, 8 further


@triton.jit
def select(a, b, k, FROM: tl.constexpr, NT: tl.constexpr):
    """b from place FROM on, a before it."""
    if len(a.shape) == 4:
        a = a.reshape(32, 4, NT, 4, 1)
        b = b.reshape(32, 4, NT, 4, 1)
    return tl.where(k < FROM, a, b)


@triton.jit
def fast_numbers(low, high, FORMAT: tl.constexpr, NT: tl.constexpr):
    """2^23 + number as float32, by fewer instructions than `numbers`: [32, 4, NT, 4 words, 8 or 4].

    `high` has the upper bits of each word's numbers, the first one lowest.
    """
    if FORMAT == 0:
        a, b, c, d = tl.inline_asm_elementwise(
            """
            prmt.b32 $0, $4, 0x4B000000, 0x7440;
            prmt.b32 $1, $4, 0x4B000000, 0x7441;
            prmt.b32 $2, $4, 0x4B000000, 0x7442;
            prmt.b32 $3, $4, 0x4B000000, 0x7443;
            """,
            "=&r,=&r,=&r,=&r,r",
            [low],
            dtype=(tl.int32,) * 4,
            is_pure=True,
            pack=1,
        )
        k = tl.arange(0, 4)[None, None, None, None, :]
        t = select(select(a, b, k, 1, NT), select(c, d, k, 3, NT), k, 2, NT)
    else:
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 t, u;
            and.b32 t, $8, 0x0F0F0F0F;
            shr.b32 u, $8, 4;
            and.b32 u, u, 0x0F0F0F0F;
            prmt.b32 $0, t, 0x4B000000, 0x7440;
            prmt.b32 $1, u, 0x4B000000, 0x7440;
            prmt.b32 $2, t, 0x4B000000, 0x7441;
            prmt.b32 $3, u, 0x4B000000, 0x7441;
            prmt.b32 $4, t, 0x4B000000, 0x7442;
            prmt.b32 $5, u, 0x4B000000, 0x7442;
            prmt.b32 $6, t, 0x4B000000, 0x7443;
            prmt.b32 $7, u, 0x4B000000, 0x7443;
            }
            """,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r",
            [low],
            dtype=(tl.int32,) * 8,
            is_pure=True,
            pack=1,
        )
        if FORMAT == 5:
            a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
                """
                {
                .reg .b32 t;
                shl.b32 t, $16, 4;
                lop3.b32 $0, t, 0x10, $8, 0xEA;
                shl.b32 t, $16, 3;
                lop3.b32 $1, t, 0x10, $9, 0xEA;
                shl.b32 t, $16, 2;
                lop3.b32 $2, t, 0x10, $10, 0xEA;
                shl.b32 t, $16, 1;
                lop3.b32 $3, t, 0x10, $11, 0xEA;
                mov.b32 t, $16;
                lop3.b32 $4, t, 0x10, $12, 0xEA;
                shr.b32 t, $16, 1;
                lop3.b32 $5, t, 0x10, $13, 0xEA;
                shr.b32 t, $16, 2;
                lop3.b32 $6, t, 0x10, $14, 0xEA;
                shr.b32 t, $16, 3;
                lop3.b32 $7, t, 0x10, $15, 0xEA;
                }
                """,
                "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r",
                [a, b, c, d, e, f, g, h, high],
                dtype=(tl.int32,) * 8,
                is_pure=True,
                pack=1,
            )
        elif FORMAT == 6:
            a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
                """
                {
                .reg .b32 t;
                shl.b32 t, $16, 4;
                lop3.b32 $0, t, 0x30, $8, 0xEA;
                shl.b32 t, $16, 2;
                lop3.b32 $1, t, 0x30, $9, 0xEA;
                mov.b32 t, $16;
                lop3.b32 $2, t, 0x30, $10, 0xEA;
                shr.b32 t, $16, 2;
                lop3.b32 $3, t, 0x30, $11, 0xEA;
                shr.b32 t, $16, 4;
                lop3.b32 $4, t, 0x30, $12, 0xEA;
                shr.b32 t, $16, 6;
                lop3.b32 $5, t, 0x30, $13, 0xEA;
                shr.b32 t, $16, 8;
                lop3.b32 $6, t, 0x30, $14, 0xEA;
                shr.b32 t, $16, 10;
                lop3.b32 $7, t, 0x30, $15, 0xEA;
                }
                """,
                "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r",
                [a, b, c, d, e, f, g, h, high],
                dtype=(tl.int32,) * 8,
                is_pure=True,
                pack=1,
            )
        k = tl.arange(0, 8)[None, None, None, None, :]
        first = select(select(a, b, k, 1, NT), select(c, d, k, 3, NT), k, 2, NT)
        second = select(select(e, f, k, 5, NT), select(g, h, k, 7, NT), k, 6, NT)
        t = select(first, second, k, 4, NT)
    return t.to(tl.float32, bitcast=True)


@triton.jit
def small(octet):
    """float32 of a number below 2^23."""
    return (octet | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def e2m1(code):
    """MXFP4's codes as float32: three bits become the exponent's end and the mantissa's begin."""
    small = ((code & 7) << 22) | ((code & 8) << 28)
    return small.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def e8m0(exponent):
    """2^(exponent − 127) as float32; that of 0 is not a normal number."""
    return tl.maximum(exponent.to(tl.int32) << 23, 0x00400000).to(tl.float32, bitcast=True)


@triton.jit
def values(t, scale, least, FORMAT: tl.constexpr, FAST: tl.constexpr):
    """The exact numbers (rounded once in blocks of 256), from 1 + number / 2^bits, or 2^23 + number."""
    if FAST and FORMAT != 3:
        ZERO: tl.constexpr = 128 if FORMAT == 0 else 8 if FORMAT == 1 else 32 if FORMAT == 6 else 0
        v = (t - (8388608.0 + ZERO)) * scale
        if FORMAT == 2 or FORMAT == 4 or FORMAT == 5:
            v -= least
    elif FORMAT == 0:
        v = tl.fma(t, scale * 256, scale * -384)
    elif FORMAT == 1:
        v = tl.fma(t, scale * 16, scale * -24)
    elif FORMAT == 3:
        v = t * scale
    elif FORMAT == 5:
        v = (t * 32 - 32) * scale - least
    elif FORMAT == 6:
        v = (t * 64 - 96) * scale
    else:
        v = (t * 16 - 16) * scale - least
    return v


@triton.jit
def pointers(base, tile, count):
    """Where a lane's scales are: of [tiles, count, 4 parts, 8 rows, 4], for lanes of 4 to a row."""
    at = (tile.to(tl.int64) * count)[None, None, :, None] * 4 + tl.arange(0, 4)[None, :, None, None]
    row = (tl.arange(0, 32) // 4)[:, None, None, None]
    return base + (at * 8 + row) * 4 + tl.arange(0, 4)[None, None, None, :]


@triton.jit
def words(base, tile, count, EACH: tl.constexpr):
    """Where a lane's words are: of [tiles, count, 4 parts, 32 lanes, EACH]."""
    at = (tile.to(tl.int64) * count)[None, None, :, None] * 4 + tl.arange(0, 4)[None, :, None, None]
    lane = tl.arange(0, 32)[:, None, None, None]
    return base + (at * 32 + lane) * EACH + tl.arange(0, EACH)[None, None, None, :]


@triton.jit
def of_words(
    low, scale, hp, mp, dp, s,
    FORMAT: tl.constexpr, NT: tl.constexpr, STEP: tl.constexpr, HIGH: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The numbers of a lane's words, float32: 32 columns, row + 8, next, 16 further, 8 further.

    Scales are given new axes by `reshape`: the compiler carries the layout of a load through it.
    """
    high = low
    if HIGH > 0:
        high = tl.load(hp + s * (128 * HIGH), eviction_policy="evict_first")
    if FAST and FORMAT != 3:
        if FORMAT == 5:  # 8 bits for each word, then 16
            high = high.reshape(32, 4, NT, 1) >> (tl.arange(0, 4) * 8)[None, None, None, :]
        elif FORMAT == 6:
            high = high.reshape(32, 4, NT, 2, 1) >> (tl.arange(0, 2) * 16)[None, None, None, None, :]
            high = high.reshape(32, 4, NT, 4)
        t = fast_numbers(low, high, FORMAT, NT)
    else:
        t = numbers(low, high, FORMAT, NT)
    least = scale
    if FORMAT == 0:
        t = t.reshape(32, 4, NT, 4, 4)  # row + 8, next; 16 and 8 further
    elif FORMAT == 6:
        t = t.reshape(32, 4, NT, 4, 2, 2, 2)  # 32 columns, row + 8; next; 16 further; 8 further
    else:
        t = t.reshape(32, 4, NT, 4, 8)  # 32 columns, row + 8; next, 16 and 8 further
    if FORMAT <= 2:
        scale = scale.to(tl.float32)
        if FORMAT == 2:
            least = -tl.load(mp + s * 128).to(tl.float32)
    elif FORMAT == 3:
        scale = e8m0(scale)
    else:
        d, floor = tl.load(dp + s // (256 // STEP) * 128).to(tl.float32).reshape(32, 4, NT, 2, 2).split()
        d = tl.broadcast_to(d.reshape(32, 4, NT, 1, 2), (32, 4, NT, 2, 2)).reshape(32, 4, NT, 4)
        both = scale.to(tl.int32)
        if FORMAT == 6:
            octet = (both.reshape(32, 4, NT, 4, 1) >> (tl.arange(0, 2) * 8)[None, None, None, None, :]) & 255
            scale = (small(octet) - 128) * d.reshape(32, 4, NT, 4, 1)
            scale = scale.reshape(32, 4, NT, 4, 1, 2, 1)
        else:
            floor = tl.broadcast_to(floor.reshape(32, 4, NT, 1, 2), (32, 4, NT, 2, 2)).reshape(32, 4, NT, 4)
            scale = small(both & 255) * d
            least = small(both >> 8) * floor
    if FORMAT != 6:
        scale = scale.reshape(32, 4, NT, 4, 1)
        least = least.reshape(32, 4, NT, 4, 1)
    return values(t, scale, least, FORMAT, FAST)


@triton.jit
def weights(
    qp, hp, sp, mp, dp, s,
    FORMAT: tl.constexpr, NT: tl.constexpr, STEP: tl.constexpr, HIGH: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The numbers of one step of all parts: [4, 16 × NT, STEP], float32, or bfloat16 with FAST = 2.

    Loads have one shape, so that the compiler lays them out alike, and at least 16 bits, from which it
    concludes the usual order of columns in a product.
    """
    low = tl.load(qp + s * 512, eviction_policy="evict_first")
    scale = tl.load(sp + s * 128)
    if FAST == 2:
        v = four_bits(low, scale.to(tl.float32), NT)  # 32 columns, next; row + 8, 16 further, 8 further
        v = v.reshape(8, 4, 4, NT, 2, 2, 2, 2, 2).permute(2, 3, 6, 0, 4, 7, 8, 1, 5)
    else:
        v = of_words(low, scale, hp, mp, dp, s, FORMAT, NT, STEP, HIGH, FAST)
        v = v.reshape(8, 4, 4, NT, STEP // 32, 2, 2, 2, 2).permute(2, 3, 5, 0, 4, 7, 8, 1, 6)
    return v.reshape(4, NT * 16, STEP)


@triton.jit
def part_pointers(quants, high, scales, minima, supers, tile, part, STEP: tl.constexpr, HIGH: tl.constexpr):
    """Where a matrix's words, scales, minima and scales of spans begin for these tiles."""
    steps = part // STEP
    qp = words(quants, tile, steps, 4)
    hp = qp
    if HIGH > 0:
        hp = words(high, tile, steps, HIGH)
    spans = pointers(supers, tile, part // 256)
    return qp, hp, pointers(scales, tile, steps), pointers(minima, tile, steps), spans
