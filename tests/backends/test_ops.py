"""Every operator of the native core alone, for every kernel set this machine can run.

Each is compared with numpy in float64, within the rounding of float32, and with the portable kernels. Where
the design promises the same bits — a row alone or in any batch, a view however its cells lie — the tests
say `==`. Integer sums are exact at the ends of their ranges.
"""

import math

import numpy as np
import pytest

from random_weights import FLOATS, HALVES_AT, put_halves, put_quarters
from random_weights import random_weights as weights
from stretto import _native
from stretto.backends.native_weights import plain_spec
from stretto.models.spec import ModelSpec, Norm
from stretto.weights.formats import READABLE, Format, dequantize

ops = _native.ops
EPS = 2.0**-24  # of one rounding
FORMATS = sorted(READABLE)
QUANTS = [fmt for fmt in FORMATS if fmt not in FLOATS]
ROWS = 1, 15, 16, 17, 50
BATCHES = 1, 2, 3, 5, 6, 7, 13, 14, 15, 16, 17, 32, 33

every_set = pytest.mark.parametrize("kernels", _native.kernel_names())
every_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
every_quant = pytest.mark.parametrize("fmt", QUANTS, ids=lambda fmt: fmt.name)
both_caches = pytest.mark.parametrize("kv", ["f16", "q8"])


def normal(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def widths(fmt):
    if fmt.block == 256:
        return 256, 512, 1280
    return sorted({-(-columns // fmt.block) * fmt.block for columns in (32, 64, 96, 512, 1056)})


def matmul(fmt, data, x, kernels):
    columns = x.shape[1]
    return ops.matmul(fmt, data.reshape(-1), len(data), columns, x, kernels)


def read_activations(x, kernels):
    """What the integer kernels see of x, in float64."""
    q, scale, _, _ = ops.quantize_rows(x, kernels)
    return q * np.repeat(scale.astype(np.float64), 32, axis=1)


# -- packing and activations --


@every_format
@pytest.mark.parametrize("rows", ROWS)
def test_packing_loses_nothing(fmt, rows):
    for columns in widths(fmt):
        data = weights(fmt, rows, columns)
        unpacked = ops.unpack(fmt, data.reshape(-1), rows, columns)
        assert np.array_equal(unpacked, dequantize(data, fmt))


@every_quant
def test_packing_loses_nothing_of_strange_scales(fmt):
    """Any bytes at all: scales that are infinite, subnormal, NaN or −0."""
    data = np.random.default_rng(4).integers(0, 256, (33, fmt.row_bytes(512)), dtype=np.uint8)
    unpacked, numbers = ops.unpack(fmt, data.reshape(-1), 33, 512), dequantize(data, fmt)
    both_nan = np.isnan(unpacked) & np.isnan(numbers)
    assert ((unpacked.view(np.uint32) == numbers.view(np.uint32)) | both_nan).all()


@every_set
@pytest.mark.parametrize("magnitude", [1e-45, 1e-40, 1e-37, 1e-30, 1e-3, 1.0, 1e4, 1e30])
def test_quantized_rows(kernels, magnitude):
    x = (np.random.default_rng(0).standard_normal((5, 96)) * magnitude).astype(np.float32)
    x[1, :32] = 0
    q, scale, scaled, sums = ops.quantize_rows(x, kernels)
    largest = np.abs(x.reshape(5, 3, 32)).max(axis=2)
    with np.errstate(over="ignore", divide="ignore"):
        inverse = np.float32(127) / largest
    seen = np.isfinite(inverse)  # smaller than that is zero
    inverse = np.where(seen, inverse, 0).repeat(32, axis=1)
    assert np.array_equal(q, np.rint(x * inverse))
    assert np.array_equal(scale, np.where(seen, largest / np.float32(127), 0))
    assert np.array_equal(sums, q.reshape(5, 6, 16).sum(axis=2, dtype=np.int32))
    assert np.array_equal(scaled, scale * (sums[:, ::2] + sums[:, 1::2]).astype(np.float32))
    if magnitude > 1e-36:
        assert np.abs(q).max() == 127


@every_set
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_says_so(kernels, bad):
    for place in (0, 15, 16, 17, 31):
        x = normal(1, 96)
        x[0, 32 + place] = bad
        q, scale, scaled, sums = ops.quantize_rows(x, kernels)
        clean = ops.quantize_rows(np.delete(x.reshape(3, 32), 1, axis=0).reshape(1, 64), kernels)
        assert not q[0, 32:64].any()
        assert not sums[0, 2:4].any()
        assert not np.isfinite(scale[0, 1])
        assert np.isnan(scaled[0, 1])
        assert np.array_equal(scale[0, [0, 2]], clean[1][0])  # the other blocks are as they would be
        assert np.array_equal(np.delete(q.reshape(3, 32), 1, axis=0).reshape(1, 64), clean[0])


# -- products --


def product_bound(fmt, numbers, x):
    """How far float32 may be off: one rounding per step of the sum, of terms at most this large."""
    columns = numbers.shape[1]
    if fmt in FLOATS:
        return columns * EPS * (np.abs(x) @ np.abs(numbers).T)
    # A block with a minimum adds terms up to three times as large as the numbers they make.
    top = np.abs(numbers).reshape(len(numbers), -1, 16).max(axis=2).repeat(16, axis=1)
    return (columns / 32 * 4 + 4) * EPS * 3 * (np.abs(x) @ top.T)


@every_set
@every_format
def test_product_equals_numpy_and_portable(kernels, fmt):
    for columns in widths(fmt):
        data = weights(fmt, 50, columns)
        x = normal(33, columns, seed=columns)
        numbers = dequantize(data, fmt).astype(np.float64)
        seen = x.astype(np.float64) if fmt in FLOATS else read_activations(x, kernels)
        bound = product_bound(fmt, numbers, seen)
        out = matmul(fmt, data, x, kernels)
        assert (np.abs(out - seen @ numbers.T) <= bound).all()
        assert (np.abs(out - matmul(fmt, data, x, "portable")) <= 2 * bound).all()
        # With the activations' own rounding it is still the product that was asked for.
        assert np.abs(out - x @ numbers.T).max() < 0.02 * np.linalg.norm(numbers, axis=1).max() * columns**0.5


@every_set
@every_format
def test_product_is_the_same_in_any_batch(kernels, fmt):
    for columns in widths(fmt):
        data = weights(fmt, 50, columns)
        x = normal(33, columns, seed=3)
        whole = matmul(fmt, data, x, kernels)
        for n in BATCHES:
            for rows in ROWS:
                assert np.array_equal(matmul(fmt, data[:rows], x[:n], kernels), whole[:n, :rows])
        for column in range(33):
            assert np.array_equal(matmul(fmt, data, x[column : column + 1], kernels)[0], whole[column])
        order = np.random.default_rng(1).permutation(33)
        assert np.array_equal(matmul(fmt, data, x[order], kernels), whole[order])


@pytest.mark.parametrize(("matrix_unit", "vectors"), [("amx", "avx512"), ("i8mm", "neon")])
@every_format
def test_matrix_units_do_what_vectors_do(fmt, matrix_unit, vectors):
    if matrix_unit not in _native.kernel_names():
        pytest.skip(f"no {matrix_unit} here")  # make check-arm asks the same of i8mm, by qemu
    for columns in widths(fmt):
        data = weights(fmt, 50, columns)
        for n in (8, 14, 16, 40, 70):
            x = normal(n, columns, seed=n)
            assert np.array_equal(matmul(fmt, data, x, matrix_unit), matmul(fmt, data, x, vectors))


def extreme_weights(fmt, rows):
    """Quants at the ends of their range, every group's scale ±1: the numbers are whole."""
    rng = np.random.default_rng(8)
    data = rng.choice(np.array([0, 255, 15, 240, 128, 127], np.uint8), (rows, fmt.row_bytes(256)))
    data[0], data[1], data[2] = 0, 255, 128
    if fmt == Format.Q8_0:
        data[3] = 127
    for at in HALVES_AT[fmt]:
        put_halves(data, fmt, at, 1.0)
    blocks = data.reshape(-1, fmt.size)
    if fmt == Format.Q2_K:
        blocks[:, :16] = 0x11  # scale 1, minimum 1
    elif fmt == Format.Q3_K:
        blocks[:, 96:104], blocks[:, 104:108] = 0x11, 0xAA  # 33 − 32
    elif fmt in (Format.Q4_K, Format.Q5_K):
        blocks[:, 4:12], blocks[:, 12:16] = 1, 0x11
    elif fmt == Format.Q6_K:
        blocks[:, 192:208] = rng.choice((1, 255), (len(blocks), 16))
    elif fmt == Format.IQ4_XS:
        blocks[:, 2:4], blocks[:, 4:8] = 0xAA, 0x11
    elif fmt == Format.MXFP4:
        blocks[:, 0] = 128
    elif fmt == Format.NVFP4:
        blocks[:, :4] = 0x40
    else:
        book_scales(blocks, fmt)
    return data


def book_scales(blocks, fmt):
    """Formats with code books: codes of 0, and half floats that make every number whole."""
    if fmt == Format.IQ1_M:
        blocks[:, 48:56] = 0
        put_quarters(blocks, 8.0)
    elif fmt == Format.IQ1_S:
        blocks[:, 35:50:2] &= 0x8F
        put_halves(blocks, fmt, 0, 8.0)
    elif fmt == Format.IQ2_XXS:
        blocks[:, 9:66:8] &= 15
        put_halves(blocks, fmt, 0, 8.0)
    elif fmt in (Format.IQ2_XS, Format.IQ2_S):
        blocks[:, -8:] = 0
        put_halves(blocks, fmt, 0, 8.0)
    elif fmt == Format.IQ3_XXS:
        blocks[:, 69:98:4] &= 15
        put_halves(blocks, fmt, 0, 4.0)
    elif fmt == Format.IQ3_S:
        blocks[:, -4:] = 0


@every_set
@every_quant
def test_integer_sums_are_exact_at_their_ends(kernels, fmt):
    data = extreme_weights(fmt, 40)
    numbers = dequantize(data, fmt).astype(np.float64)
    assert np.array_equal(numbers, np.rint(numbers))
    x = np.random.default_rng(2).choice(np.array([-127, 127], np.float32), (33, 256))
    x[0], x[1] = 127, -127
    x[2, ::2], x[2, 1::2] = 127, -127
    x[3] = np.where(numbers[3] < 0, -127, 127)  # every product of a row has one sign
    expected = x.astype(np.float64) @ numbers.T
    assert np.abs(expected).max() < 2**24  # so a float holds it
    out = matmul(fmt, data, x, kernels)
    assert np.array_equal(out, expected)
    for column in range(4):
        assert np.array_equal(matmul(fmt, data, x[column : column + 1], kernels)[0], expected[column])


@pytest.mark.parametrize(
    ("fmt", "lowest", "highest"),
    [(Format.Q8_0, -128, 127), (Format.Q4_0, -8, 7), (Format.Q6_K, -32, 32), (Format.Q4_1, 1, 16)],
)
def test_extreme_weights_are_extreme(fmt, lowest, highest):
    numbers = dequantize(extreme_weights(fmt, 40), fmt)
    assert (numbers.min(), numbers.max()) == (lowest, highest)


@every_set
@every_format
def test_bad_activations_stay_in_their_row(kernels, fmt):
    columns = 256
    data = weights(fmt, 17, columns)
    for n in 7, 40:
        x = normal(n, columns)
        clean = matmul(fmt, data, x, kernels)
        x[1, 40], x[3, 200], x[4, 0], x[4, 1] = np.nan, np.inf, np.inf, -np.inf
        out = matmul(fmt, data, x, kernels)
        bad = np.isin(np.arange(n), (1, 3, 4))
        assert not np.isfinite(out[bad]).any()
        assert np.array_equal(out[~bad], clean[~bad])


@every_set
@every_format
def test_tiny_activations_stay_tiny(kernels, fmt):
    x = normal(3, 256, scale=1e-38)
    assert np.abs(matmul(fmt, weights(fmt, 16, 256), x, kernels)).max() < 1e-30


# -- rows --


@every_set
@pytest.mark.parametrize("size", [1, 8, 15, 16, 17, 64, 576, 2050])
@pytest.mark.parametrize("magnitude", [1e-12, 1.0, 1e12])
def test_rms_norm(kernels, size, magnitude):
    x, weight = normal(3, size, scale=magnitude), normal(size, seed=1)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    out = ops.rms_norm(x, weight, 1e-5, kernels)
    assert np.allclose(out, expected, rtol=(size / 16 + 8) * EPS, atol=0)
    assert np.allclose(out, ops.rms_norm(x, weight, 1e-5, "portable"), rtol=2 * (size / 16 + 8) * EPS, atol=0)
    assert np.array_equal(ops.rms_norm(x[1:2], weight, 1e-5, kernels), out[1:2])


@every_set
@pytest.mark.parametrize("size", [1, 15, 16, 17, 100])
def test_add(kernels, size):
    x, y = normal(3, size), normal(3, size, seed=1)
    assert np.array_equal(ops.add(x, y, kernels), x + y)


@every_set
@pytest.mark.parametrize("rank", [1, 4, 8, 16, 17, 31, 32, 33, 48, 64, 65])
@pytest.mark.parametrize("rows", [5, 16, 96, 101])
def test_a_narrow_product_is_added_as_a_product_and_a_sum(kernels, rank, rows):
    """Panels without the columns that blocks are made up with have the same bits as whole ones."""
    columns = -(-rank // 32) * 32
    data, x, y = weights(Format.Q8_0, rows, columns), normal(3, columns, seed=1), normal(3, rows, seed=2)
    x[:, rank:] = 0
    product = np.vstack([matmul(Format.Q8_0, data, row[None], kernels) for row in x])
    added = ops.add_narrow(data.reshape(-1), rank, x, y, kernels)
    assert np.array_equal(added, ops.add(y, product, kernels))


def silu(x):
    return 0.5 * x * (1 + np.tanh(0.5 * x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x * 0.5**0.5))


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_erf": gelu_erf}
# The series of the exact GELU is good to 8e-8 of the number that goes in.
ABSOLUTE = {"silu": 1e-7, "gelu": 1e-7, "gelu_erf": 3e-6}


@every_set
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 333])
def test_activation(kernels, name, size):
    gate, up = normal(4, size, scale=4), normal(4, size, seed=1)
    gate[0] = np.linspace(-30, 30, size)
    gate[1, :3] = np.float32([1e-30, -1e-30, 0])[:size]
    expected, most = ACTIVATIONS[name](gate.astype(np.float64)) * up, ABSOLUTE[name]
    function = getattr(ops, name)
    out = function(gate, up, kernels)
    # The exponent e^−x has the relative error of its argument, |x| roundings.
    assert np.allclose(out, expected, rtol=64 * EPS, atol=most)
    assert np.allclose(out, function(gate, up, "portable"), rtol=64 * EPS, atol=most)
    for column in range(min(size, 20)):  # a number does not depend on its neighbours
        alone = function(gate[:, column : column + 1].copy(), up[:, column : column + 1].copy(), kernels)
        assert np.array_equal(alone[:, 0], out[:, column])


@every_set
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_far_out(kernels, name):
    far = np.float32([[-1e30, -1e4, -200, -88, 88, 200, 1e4, 1e30]])
    out = getattr(ops, name)(far, np.ones_like(far), kernels)[0]
    assert np.allclose(out[:4], 0, atol=1e-7)
    assert np.array_equal(out[4:], far[0, 4:])
    lost = getattr(ops, name)(np.float32([[np.nan, 1.0]]), np.ones((1, 2), np.float32), kernels)[0]
    assert np.isnan(lost[0])
    assert np.isfinite(lost[1])


@every_set
@every_format
@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_ffn_is_its_parts(kernels, fmt, name):
    n_embd, n_ff = 256, 512
    gate, up = weights(fmt, n_ff, n_embd, 1), weights(fmt, n_ff, n_embd, 2)
    down = weights(fmt, n_embd, n_ff, 3)
    x = normal(5, n_embd, scale=0.1)
    out = ops.ffn(fmt, gate.reshape(-1), up.reshape(-1), down.reshape(-1), n_ff, x, name, kernels)
    wide = getattr(ops, name)(matmul(fmt, gate, x, kernels), matmul(fmt, up, x, kernels), kernels)
    assert np.array_equal(out, matmul(fmt, down, wide, kernels))
    numbers = [dequantize(data, fmt).astype(np.float64) for data in (gate, up, down)]
    exact = ({"silu": silu, "gelu": gelu}[name](x @ numbers[0].T) * (x @ numbers[1].T)) @ numbers[2].T
    assert np.linalg.norm(out - exact) < (1e-5 if fmt in FLOATS else 0.05) * np.linalg.norm(exact)


@pytest.mark.parametrize("pairs", ["adjacent", "halves"])
@pytest.mark.parametrize("rotated", [64, 32, 2])
def test_rope(pairs, rotated):
    x = normal(7, 64)
    positions = np.array([0, 1, 2, 100, 4095, 131071, 2**31 - 1], np.int32)
    frequencies = 10000.0 ** (-np.arange(rotated // 2) / (rotated // 2))
    out = ops.rope(x, positions, frequencies, pairs, 1.25)
    angle = np.outer(positions, frequencies)
    cos, sin = np.cos(angle) * 1.25, np.sin(angle) * 1.25
    half = rotated // 2
    first = np.s_[:, 0:rotated:2] if pairs == "adjacent" else np.s_[:, :half]
    second = np.s_[:, 1:rotated:2] if pairs == "adjacent" else np.s_[:, half:rotated]
    expected = x.astype(np.float64)
    a, b = x[first].astype(np.float64), x[second].astype(np.float64)
    expected[first], expected[second] = a * cos - b * sin, a * sin + b * cos
    assert np.abs(out - expected).max() <= 4 * EPS * 1.25 * np.abs(x).max() * 2
    assert np.array_equal(out[:, rotated:], x[:, rotated:])
    assert np.array_equal(ops.rope(x[:1], positions[:1], frequencies, pairs, 1.0), x[:1])


# -- the cache --


@every_set
def test_every_half_is_read_exactly(kernels):
    halves = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 64)
    out = ops.load_heads(halves.view(np.uint8), 64, "f16", kernels)
    with np.errstate(invalid="ignore"):  # some processors tell NumPy of signalling NaNs
        exact = halves.view(np.float16).astype(np.float32)
    assert np.array_equal(out, exact, equal_nan=True)


@every_set
@pytest.mark.parametrize("size", [1, 8, 16, 20, 64, 80, 128, 256])
@pytest.mark.parametrize("magnitude", [1e-8, 1e-4, 1.0, 3e4, 1e6])
def test_heads_stored_as_halves(kernels, size, magnitude):
    x = normal(9, size, scale=magnitude)
    data = ops.store_heads(x, "f16", kernels)
    with np.errstate(over="ignore"):
        assert np.array_equal(data.view(np.float16), x.astype(np.float16))
    loaded = ops.load_heads(data, size, "f16", kernels)
    assert np.array_equal(loaded, data.view(np.float16).astype(np.float32))


@every_set
@pytest.mark.parametrize("size", [1, 8, 16, 20, 64, 80, 128, 256])
@pytest.mark.parametrize("magnitude", [0.0, 1e-8, 1e-4, 1.0, 3e4])
def test_heads_stored_in_eight_bits(kernels, size, magnitude):
    x = normal(9, size, scale=magnitude)
    data = ops.store_heads(x, "q8", kernels)
    blocks = -(-size // 32)
    wide = np.pad(x, ((0, 0), (0, blocks * 32 - size))).reshape(9, blocks, 32)
    d = (np.abs(wide).max(axis=2) / np.float32(127)).astype(np.float16).astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.where(d > 0, np.float32(1) / d, np.float32(0))
    q = np.clip(np.rint(wide * inverse[:, :, None]), -127, 127)
    stored = data.reshape(9, blocks, 34)
    assert np.array_equal(stored[:, :, :2].copy().view(np.float16)[:, :, 0].astype(np.float32), d)
    assert np.array_equal(stored[:, :, 2:].view(np.int8), q)
    expected = (q * d[:, :, None]).astype(np.float32).reshape(9, -1)[:, :size]
    assert np.array_equal(ops.load_heads(data, size, "q8", kernels), expected)


@every_set
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_heads_say_so(kernels, bad):
    for place in (0, 17, 31):
        x = normal(2, 64)
        x[0, place] = bad
        for kv in ("f16", "q8"):
            out = ops.load_heads(ops.store_heads(x, kv, kernels), 64, kv, kernels)
            assert not np.isfinite(out[0, place])
            assert np.isfinite(out[0, 32:]).all()
            assert np.isfinite(out[1]).all()


def expected_attention(queries, keys, values, view, begins, ends, scale, kv, cap=0.0):
    """In float64, with K and V as the cache holds them."""
    size = queries.shape[2]
    k, v = (
        ops.load_heads(ops.store_heads(x, kv, "portable"), size, kv, "portable").astype(np.float64)[view]
        for x in (keys, values)
    )
    out = np.empty(queries.shape)
    for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        scores = queries[row].astype(np.float64) @ k[begin:end].T * scale
        scores = cap * np.tanh(scores / cap) if cap else scores
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[row] = weights / weights.sum(axis=1, keepdims=True) @ v[begin:end]
    return out


def attention_case(length, size, group, rows=1, window=0, seed=0):
    """Rows whose part of a view of scattered cells ends near `length`."""
    rng = np.random.default_rng((length, size, group, rows, seed))
    cells = length + 5
    ends = np.sort(rng.integers(max(1, length - 40), length + 1, rows)).astype(np.int32)
    ends[-1] = length
    return {
        "queries": normal(rows, group, size, seed=seed),
        "keys": normal(cells, size, seed=seed + 1),
        "values": normal(cells, size, seed=seed + 2),
        "view": rng.permutation(cells)[:length].astype(np.int32),
        "begins": np.maximum(0, ends - window).astype(np.int32) if window else np.zeros(rows, np.int32),
        "ends": ends,
        "scale": size**-0.5,
    }


def rows_of(case, rows):
    return {**case, **{name: case[name][rows] for name in ("queries", "begins", "ends")}}


def attention_tolerance(kernels, kv):
    """ARM's kernels make integers of 16 bits of queries and weights where K and V have 8.

    Such a score is off by 2^-16 of the largest product, so that weights are off by some 1e-4 of themselves.
    What 8 bits leave of V is off by 1e-2.
    """
    return 3e-4 if kv == "q8" and kernels in ("neon", "i8mm") else 5e-6


LENGTHS = 1, 31, 32, 33, 255, 256, 257, 511, 512, 513, 1100


@every_set
@both_caches
@pytest.mark.parametrize("size", [8, 16, 64, 80, 128, 256])
def test_attention_equals_numpy_and_portable(kernels, kv, size):
    for index, length in enumerate(LENGTHS):
        case = attention_case(length, size, group=1 + (index + size // 16) % 8, rows=3)
        out = ops.attention(**case, kv=kv, kernels=kernels)
        expected = expected_attention(**case, kv=kv)
        tolerance = attention_tolerance(kernels, kv)
        assert np.abs(out - expected).max() < tolerance
        assert np.abs(out - ops.attention(**case, kv=kv, kernels="portable")).max() < 2 * tolerance


@every_set
@pytest.mark.parametrize("kv", ["f16", "q8", "f32"])
@pytest.mark.parametrize("size", [8, 64, 80, 128])
@pytest.mark.parametrize("group", [1, 3])  # rows of one head each are taken four at a time
def test_attention_of_a_row_is_the_same_in_any_block(kernels, kv, size, group):
    for length in (33, 513, 1100):
        for window in (0, 30, 600):
            case = attention_case(length, size, group, rows=16, window=window)
            whole = ops.attention(**case, kv=kv, kernels=kernels)
            for row in range(16):
                alone = ops.attention(**rows_of(case, slice(row, row + 1)), kv=kv, kernels=kernels)
                assert np.array_equal(alone[0], whole[row])
            few = ops.attention(**rows_of(case, np.array([7, 2, 11])), kv=kv, kernels=kernels)
            assert np.array_equal(few, whole[[7, 2, 11]])
    case["begins"][:], case["ends"][:] = 0, length  # every row sees everything, as an image's patches do
    whole = ops.attention(**case, kv=kv, kernels=kernels)
    for row in range(16):
        alone = ops.attention(**rows_of(case, slice(row, row + 1)), kv=kv, kernels=kernels)
        assert np.array_equal(alone[0], whole[row])


@every_set
@both_caches
@pytest.mark.parametrize("group", range(1, 9))
def test_attention_of_a_head_is_the_same_in_any_group(kernels, kv, group):
    for size in (64, 80):
        case = attention_case(600, size, group, rows=2)
        whole = ops.attention(**case, kv=kv, kernels=kernels)
        for head in range(group):
            queries = np.ascontiguousarray(case["queries"][:, head : head + 1])
            alone = ops.attention(**{**case, "queries": queries}, kv=kv, kernels=kernels)
            assert np.array_equal(alone[:, 0], whole[:, head])


@every_set
@both_caches
@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 100, 512, 700])
def test_attention_in_a_window(kernels, kv, window):
    case = attention_case(1100, 64, group=2, rows=5, window=window)
    out = ops.attention(**case, kv=kv, kernels=kernels)
    assert np.abs(out - expected_attention(**case, kv=kv)).max() < attention_tolerance(kernels, kv)


@every_set
@both_caches
@pytest.mark.parametrize("rows", [1, 5])
def test_attention_with_capped_scores(kernels, kv, rows):
    for cap in (0.5, 30.0, 50.0):
        for magnitude in (1.0, 100.0, 1e30):
            case = attention_case(600, 64, group=3, rows=rows)
            case["queries"] *= np.float32(magnitude)
            out = ops.attention(**case, cap=cap, kv=kv, kernels=kernels)
            # Near zero the cap rounds like a number of its own size: some 5e-6 of 50.
            assert np.abs(out - expected_attention(**case, cap=cap, kv=kv)).max() < 5e-5
            case["keys"][case["view"][3], 0] = np.nan
            assert np.isnan(ops.attention(**case, cap=cap, kv=kv, kernels=kernels)).all()


@every_set
@both_caches
@pytest.mark.parametrize("rows", [1, 4])
def test_attention_does_not_depend_on_where_cells_lie(kernels, kv, rows):
    for size in (64, 80, 128):
        case = attention_case(540, size, group=3, rows=rows)
        order = np.random.default_rng(5).permutation(len(case["keys"]))
        moved = {
            **case,
            "keys": case["keys"][order],
            "values": case["values"][order],
            "view": np.argsort(order)[case["view"]].astype(np.int32),
        }
        one, two = (ops.attention(**c, kv=kv, kernels=kernels) for c in (case, moved))
        assert np.array_equal(one, two)


@every_set
@both_caches
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 6e4])
def test_what_a_row_does_not_see_counts_nothing(kernels, kv, rows, garbage):
    for size in (8, 64, 128):
        case = attention_case(560, size, group=2, rows=rows, window=40)
        seen = case["view"][case["begins"].min() : case["ends"].max()]
        unseen = np.setdiff1d(np.arange(len(case["keys"])), seen)
        spoiled = {**case, "keys": case["keys"].copy(), "values": case["values"].copy()}
        spoiled["keys"][unseen] = spoiled["values"][unseen] = garbage
        one, two = (ops.attention(**c, kv=kv, kernels=kernels) for c in (case, spoiled))
        assert np.isfinite(two).all()
        assert np.array_equal(one, two)
        # Nor does what only another row of the block sees.
        view = case["view"]
        spoiled["keys"][view[case["ends"][0] :]] = spoiled["values"][view[case["ends"][0] :]] = garbage
        out = ops.attention(**spoiled, kv=kv, kernels=kernels)
        assert np.array_equal(out[0], one[0])


@every_set
@both_caches
@pytest.mark.parametrize("length", [1, 40, 600])
def test_attention_with_scores_of_any_size(kernels, kv, length):
    case = attention_case(length, 64, group=2, rows=2)
    cell = case["view"][length // 2]
    case["ends"][:] = length
    case["keys"][cell] = 100
    winner = ops.load_heads(ops.store_heads(case["values"], kv, kernels), 64, kv, kernels)[cell]
    for magnitude in (1.0, 1e4, 1e20, 1e30):  # one score stands out by far
        case["queries"][:] = magnitude
        out = ops.attention(**case, kv=kv, kernels=kernels)
        assert np.allclose(out, winner, rtol=0, atol=1e-35)  # the others have e^−87 at most
    case["queries"][:] = -1e30  # and the same cell counts nothing
    case["keys"][:] = 0
    case["keys"][cell] = 100
    if length > 1:
        rest = np.delete(case["view"], length // 2)
        without = {**case, "queries": case["queries"] * 0, "view": rest, "ends": case["ends"] - 1}
        mean = expected_attention(**without, kv=kv)
        out = ops.attention(**case, kv=kv, kernels=kernels)
        assert np.abs(out - mean).max() < attention_tolerance(kernels, kv)
    for magnitude in (0, 1e-40, 1e-30, 1e-10):  # all count the same
        case["queries"][:] = magnitude
        out = ops.attention(**case, kv=kv, kernels=kernels)
        assert np.abs(out - expected_attention(**case, kv=kv)).max() < attention_tolerance(kernels, kv)


@every_set
@both_caches
def test_attention_survives_scores_that_are_no_numbers(kernels, kv):
    for bad in (np.nan, np.inf, -np.inf, 3e38):
        case = attention_case(600, 64, group=2, rows=2)
        case["queries"][0] = bad
        out = ops.attention(**case, kv=kv, kernels=kernels)
        alone = ops.attention(**rows_of(case, slice(1, 2)), kv=kv, kernels=kernels)
        assert np.array_equal(out[1], alone[0])
        assert not np.isfinite(out[0]).any()
    for entry in (0, 20, 530):  # a cell that is seen and bad is not passed over
        case = attention_case(600, 64, group=2, rows=2)
        case["keys"][case["view"][entry], 5] = np.nan
        assert np.isnan(ops.attention(**case, kv=kv, kernels=kernels)).all()


# -- arguments --


def test_unknown_names_are_refused():
    x = np.ones((1, 32), np.float32)
    for call in (
        lambda: ops.quantize_rows(x, "sse9"),
        lambda: ops.matmul(0, x.view(np.uint8).reshape(-1), 1, 32, x, "sse9"),
        lambda: ops.rms_norm(x, x[0], 1e-5, "sse9"),
        lambda: ops.add(x, x, "sse9"),
        lambda: ops.silu(x, x, "sse9"),
        lambda: ops.gelu(x, x, "sse9"),
        lambda: ops.store_heads(x, "f16", "sse9"),
        lambda: ops.load_heads(x.view(np.uint8), 64, "f16", "sse9"),
        lambda: ops.attention(**attention_case(3, 8, 1), kernels="sse9"),
    ):
        with pytest.raises(ValueError, match="cannot run the kernels 'sse9'"):
            call()
    with pytest.raises(ValueError, match="kv must be"):
        ops.store_heads(x, "f8")
    with pytest.raises(ValueError, match="kv must be"):
        ops.attention(**attention_case(3, 8, 1), kv="")
    with pytest.raises(ValueError, match="pairs must be"):
        ops.rope(x, np.zeros(1, np.int32), np.ones(1), "both")
    with pytest.raises(ValueError, match="activation must be"):
        ops.ffn(0, np.zeros(128, np.uint8), np.zeros(128, np.uint8), np.zeros(128, np.uint8), 1, x, "relu")


IMPOSSIBLE = r"matrix of this shape|bytes do not fit|rows of `columns`"


@pytest.mark.parametrize("function", ["matmul", "unpack"])
def test_matrices_that_cannot_be_are_refused(function):
    def call(code, data, rows, columns):
        x = (np.ones((1, columns if 0 < columns < 512 else 64), np.float32),) * (function == "matmul")
        return getattr(ops, function)(code, data, rows, columns, *x)

    q8 = weights(Format.Q8_0, 4, 64).reshape(-1)
    call(Format.Q8_0, q8, 4, 64)
    for data, rows, columns in (
        (q8, 5, 64),
        (q8, 4, 32),
        (q8, 3, 64),
        (q8[:-1], 4, 64),
        (q8[:0], 4, 64),
        (q8, 4, 48),
        (q8[:0], 0, 64),
        (q8[:0], 4, 0),
        (q8[:0], 2**40, 64),
    ):
        with pytest.raises(ValueError, match=IMPOSSIBLE):
            call(Format.Q8_0, data, rows, columns)
    with pytest.raises(ValueError, match=IMPOSSIBLE):
        call(Format.F32, q8[:0], 2**31, 2**31)  # 2⁶⁴ bytes: nothing, if the product is not watched
    with pytest.raises(ValueError, match="format 99 is not known"):
        call(99, q8, 4, 64)
    for rows, columns in ((-4, 64), (4, -64), (4.0, 64), (2**70, 64)):
        with pytest.raises(TypeError):
            call(Format.Q8_0, q8, rows, columns)
    for data in (q8.astype(np.int8), q8[::2], q8.reshape(2, -1), list(q8), None):
        with pytest.raises(TypeError):
            call(Format.Q8_0, data, 4, 64)


def test_the_decoder_refuses_matrices_that_cannot_be():
    """The same check, where a model is loaded."""
    spec = ModelSpec("test", 32, 32, 64, (), Norm("output_norm", 1e-5))
    decoder = _native.Decoder(plain_spec(spec), 1, "f16", 1, "portable")
    none = np.zeros(0, np.uint8)
    with pytest.raises(ValueError, match="matrix of this shape cannot be"):
        decoder.set_unpacked("token_embd", Format.F32, 2**31, 2**31, none)
    with pytest.raises(ValueError, match="matrix of this shape cannot be"):
        decoder.pack_rows("token_embd", Format.F32, 2**31, 2**31, none, 0)
    with pytest.raises(ValueError, match="bytes do not fit"):
        decoder.pack_rows("token_embd", Format.F32, 32, 32, none, 1)


def test_arrays_that_do_not_fit_are_refused():
    x = np.ones((2, 32), np.float32)
    none = np.ones((0, 32), np.float32)
    byte = np.zeros(128, np.uint8)
    for call in (
        lambda: ops.quantize_rows(x[:, :31].copy()),
        lambda: ops.quantize_rows(none),
        lambda: ops.matmul(0, byte, 1, 32, x[:, :31].copy()),
        lambda: ops.matmul(0, byte, 1, 32, none),
        lambda: ops.rms_norm(x, x[0, :31], 1e-5),
        lambda: ops.rms_norm(none, x[0], 1e-5),
        lambda: ops.rms_norm(none.reshape(32, 0), x[0, :0], 1e-5),
        lambda: ops.add(x, x[:1]),
        lambda: ops.silu(x, x[:, :16].copy()),
        lambda: ops.gelu(none, none),
        lambda: ops.ffn(0, byte, byte, byte, 2, x),
        lambda: ops.rope(x, np.zeros(1, np.int32), np.ones(1), "halves"),
        lambda: ops.rope(x, np.zeros(2, np.int32), np.ones(17), "halves"),
        lambda: ops.store_heads(none, "f16"),
        lambda: ops.load_heads(np.zeros((1, 63), np.uint8), 32, "f16"),
        lambda: ops.load_heads(np.zeros((1, 0), np.uint8), 0, "q8"),
        lambda: ops.load_heads(np.zeros((1, 0), np.uint8), 2**63, "f16"),
    ):
        with pytest.raises(ValueError, match=" "):
            call()
    for call in (
        lambda: ops.quantize_rows(x.astype(np.float64)),
        lambda: ops.quantize_rows(x[:, ::2]),
        lambda: ops.quantize_rows(x[0]),
        lambda: ops.quantize_rows(None),
        lambda: ops.silu(x, x.astype(np.float16)),
        lambda: ops.rms_norm(x, x[0], "small"),
        lambda: ops.rope(x, np.zeros(2, np.int64), np.ones(1), "halves"),
        lambda: ops.rope(x, np.zeros(2, np.int32), np.ones(1, np.float32), "halves"),
        lambda: ops.load_heads(np.zeros((1, 64), np.int8), 32, "f16"),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize(
    "change",
    [
        {"cap": -1.0},
        {"cap": np.nan},
        {"view": [0, 1, 99]},
        {"view": [0, 1, -1]},
        {"view": []},
        {"view": [0, 1]},
        {"ends": [4]},
        {"ends": [0]},
        {"ends": [-1]},
        {"ends": [3, 3]},
        {"ends": []},
        {"begins": [3]},
        {"begins": [-1]},
        {"begins": []},
        {"queries": np.ones((1, 1, 7), np.float32)},
        {"queries": np.ones((0, 1, 8), np.float32)},
        {"queries": np.ones((1, 0, 8), np.float32)},
        {"keys": np.ones((8, 7), np.float32)},
        {"keys": np.ones((0, 8), np.float32)},
        {"values": np.ones((7, 8), np.float32)},
    ],
    ids=lambda change: " ".join(f"{key} {getattr(value, 'shape', value)}" for key, value in change.items()),
)
def test_attention_refuses_what_does_not_fit(change):
    case = attention_case(3, 8, group=1)
    assert len(case["keys"]) == 8
    for key, value in change.items():
        case[key] = np.array(value, np.int32) if isinstance(value, list) else value
    with pytest.raises(ValueError, match=" "):
        ops.attention(**case)
    with pytest.raises(TypeError):
        ops.attention(**{**case, "view": case["view"].astype(np.int64)})
