"""K, V and queries as operands of attention's products, in Triton.

A product's bits depend on which 16 numbers a tensor core adds at once. The compiler reorders the numbers of
operands that were loaded as 8 bits, and only for some instructions, so prompts and single rows would differ.
Heads of 8 bits are therefore loaded as pairs, 16 bits each, and multiplied as two heads: even numbers, and
odd ones.
"""

import triton
import triton.language as tl

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
