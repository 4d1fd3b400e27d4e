"""Random matrices of every format, with scales of a usual size."""

import numpy as np

from stretto.weights.formats import READABLE, Format

FLOATS = frozenset({Format.F32, Format.F16, Format.BF16})
# Where a block has its half-precision scales; those of MXFP4, NVFP4 and IQ1_M are of other kinds.
HALVES_AT = {
    Format.Q4_0: (0,), Format.Q4_1: (0, 2), Format.Q5_0: (0,), Format.Q5_1: (0, 2), Format.Q8_0: (0,),
    Format.Q2_K: (80, 82), Format.Q3_K: (108,), Format.Q4_K: (0, 2), Format.Q5_K: (0, 2), Format.Q6_K: (208,),
    Format.IQ4_NL: (0,), Format.IQ4_XS: (0,), Format.IQ1_S: (0,), Format.IQ2_XXS: (0,), Format.IQ2_XS: (0,),
    Format.IQ2_S: (0,), Format.IQ3_XXS: (0,), Format.IQ3_S: (0,), Format.TQ1_0: (52,), Format.TQ2_0: (64,),
    Format.Q1_0: (0,), Format.MXFP4: (), Format.NVFP4: (), Format.IQ1_M: (),
}  # fmt: skip
assert set(HALVES_AT) | FLOATS == READABLE


def put_halves(data, fmt, at, values):
    """Write `values`, one per block, at a place of every block of uint8[rows, bytes]."""
    blocks = data.reshape(-1, fmt.size)
    blocks[:, at : at + 2] = np.broadcast_to(values, len(blocks)).astype("<f2")[:, None].view(np.uint8)


def put_quarters(data, values):
    """Write the half floats of IQ1_M, a quarter of each in the upper bits of four words."""
    blocks = data.reshape(-1, Format.IQ1_M.size)
    halves = np.broadcast_to(values, len(blocks)).astype("<f2").view(np.uint16)
    for i in range(4):
        high = blocks[:, 49 + 2 * i]
        blocks[:, 49 + 2 * i] = (high & 15) | (halves >> 4 * i & 15) << 4


def put_scales(data, fmt, values, rng):
    """Write scales of about `values`, one for each block of uint8[rows, bytes]."""
    blocks = data.reshape(-1, fmt.size)
    for at in HALVES_AT[fmt]:
        signs = rng.choice((-1, 1), len(blocks))
        put_halves(data, fmt, at, signs * values)
    if fmt == Format.MXFP4:
        blocks[:, 0] = np.floor(np.log2(values)) + 128
    elif fmt == Format.NVFP4:
        blocks[:, :4] = (
            rng.integers(0, 8, (len(blocks), 4)) + 8 * np.clip(np.log2(values) + 8, 0, 15)[:, None]
        )
    elif fmt == Format.IQ1_M:
        put_quarters(data, values)


def random_weights(fmt, rows, columns, seed=1, scale=(0.01, 0.1)):
    """uint8[rows, bytes]: random bytes, scales between the two of `scale`."""
    rng = np.random.default_rng(seed)
    if fmt in FLOATS:
        numbers = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
        if fmt == Format.F32:
            return numbers.view(np.uint8)
        if fmt == Format.F16:
            return numbers.astype(np.float16).view(np.uint8)
        return np.ascontiguousarray(numbers.view(np.uint16)[:, 1::2]).view(np.uint8)
    data = rng.integers(0, 256, (rows, fmt.row_bytes(columns)), dtype=np.uint8)
    put_scales(data, fmt, rng.uniform(*scale, rows * columns // fmt.block), rng)
    return data
