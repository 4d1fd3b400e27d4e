"""Writers of formats: errors near the best there is, other readers agree, hostile numbers."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize

from stretto import _native
from stretto.weights.formats import READABLE, WRITABLE, Format, dequantize, quantize

WRITTEN = Path(__file__).parent.parent / "data" / "written.npz"  # made by scripts/make_format_golden.py
QUANTISED = sorted(fmt for fmt in WRITABLE if fmt.block > 1)
NAMES = [fmt.name for fmt in QUANTISED]
# The root of the mean squared error, relative to Gaussian numbers.
LIMITS = {
    "Q4_0": 0.09,
    "Q4_1": 0.08,
    "Q5_0": 0.045,
    "Q5_1": 0.04,
    "Q8_0": 0.006,
    "Q2_K": 0.3,
    "Q3_K": 0.16,
    "Q4_K": 0.075,
    "Q5_K": 0.037,
    "Q6_K": 0.019,
    "IQ4_NL": 0.08,
    "IQ4_XS": 0.082,
    "MXFP4": 0.12,
    "NVFP4": 0.12,
    "IQ3_S": 0.14,
    "IQ3_XXS": 0.19,
    "IQ2_S": 0.26,
    "IQ2_XS": 0.31,
    "IQ2_XXS": 0.36,
    "IQ1_S": 0.48,
    "IQ1_M": 0.45,
    "TQ1_0": 0.46,
    "TQ2_0": 0.46,
    "Q1_0": 0.62,
}


def normal(rows, columns, seed=0, scale=0.02):
    return (np.random.default_rng(seed).standard_normal((rows, columns)) * scale).astype(np.float32)


def relative_error(values, data, fmt):
    off = dequantize(data, fmt).astype(np.float64) - values
    return np.sqrt((off**2).sum() / (values.astype(np.float64) ** 2).sum())


def test_every_format_that_is_read_can_be_written():
    assert WRITABLE == READABLE


@pytest.mark.parametrize("name", LIMITS)
def test_the_error_of_gaussian_numbers_is_small(name):
    values = normal(16, 1024, scale=0.5 if name == "NVFP4" else 0.02)  # which has no scale for tiny ones
    assert relative_error(values, quantize(values, Format[name]), Format[name]) < LIMITS[name]


@pytest.mark.golden
@pytest.mark.parametrize("name", [name for name in LIMITS if name != "Q1_0"])
def test_other_readers_read_the_same_numbers(name):
    data = quantize(normal(4, 512), Format[name])
    theirs = gguf_dequantize(data, gguf.GGMLQuantizationType[name])
    assert np.array_equal(dequantize(data, Format[name]), theirs)


@pytest.mark.golden
def test_q8_0_has_the_bytes_that_llama_cpp_writes():
    values = normal(64, 512, seed=4)
    theirs = gguf_quantize(values, gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(quantize(values, Format.Q8_0), theirs)


@pytest.mark.golden
@pytest.mark.parametrize("kind", ["plain", "weighed"])
@pytest.mark.parametrize("name", ["IQ4_NL", "IQ4_XS", "Q6_K", "Q8_0"])
def test_bytes_are_those_that_llama_cpp_wrote(name, kind):
    with np.load(WRITTEN) as stored:
        values, expected = stored["numbers"].astype(np.float32), stored[f"{name} {kind}"]
        importance = stored["importance"] if kind == "weighed" else None
    assert np.array_equal(quantize(values, Format[name], importance), expected)


@pytest.mark.golden
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_errors_of_large_numbers_are_below_those_of_plain_rounding(name):
    values, fmt = normal(32, 512, seed=1), Format[name]
    plain = dequantize(gguf_quantize(values, gguf.GGMLQuantizationType[name]), fmt)
    found = dequantize(quantize(values, fmt), fmt)
    weights = values.astype(np.float64) ** 2
    assert (weights * (found - values) ** 2).sum() < 1.005 * (weights * (plain - values) ** 2).sum()


def emphasis(name, values):
    """How much errors count by the size of numbers."""
    wide = values.astype(np.float64)
    return wide**2 if name == "Q4_0" else np.abs(wide) + np.sqrt((wide**2).mean(axis=1, keepdims=True))


def best_scale(values, weights, low, high):
    """The least weighted error of any scale, by trying thousands, each with half-float rounding."""
    most = np.abs(values).max()
    scales = np.concatenate([np.linspace(0.5, 1.6, 3000), -np.linspace(0.5, 1.6, 3000)]) * most / high
    scales = scales.astype(np.float16).astype(np.float64)
    q = np.clip(np.round(values / scales[:, None]), low, high)
    return (weights * (values - scales[:, None] * q) ** 2).sum(axis=1).min()


@pytest.mark.parametrize(("name", "low", "high"), [("Q4_0", -8, 7), ("Q5_0", -16, 15)])
def test_scales_are_nearly_as_good_as_the_best_of_thousands(name, low, high):
    values, fmt = normal(64, 32, seed=2), Format[name]
    found = dequantize(quantize(values, fmt), fmt)
    weights = emphasis(name, values)
    ours = (weights * (found - values) ** 2).sum(axis=1)
    best = np.array([best_scale(row, w, low, high) for row, w in zip(values, weights, strict=True)])
    assert ours.sum() < 1.2 * best.sum()


def best_range(values, weights, high):
    """The least weighted error of a scale and a minimum: hundreds of ranges, and the best fit for each."""
    low, top = values.min(), values.max()
    q = np.round((values - low) / ((top - low) / np.arange(0.75 * high, 1.2 * high, 0.05)[:, None]))
    q = np.clip(q, 0, high)
    total, x, sum_q = weights.sum(), (weights * values).sum(), (weights * q).sum(axis=1)
    qq, xq = (weights * q * q).sum(axis=1), (weights * values * q).sum(axis=1)
    scale = (total * xq - x * sum_q) / (total * qq - sum_q**2)
    least = (x - scale * sum_q) / total
    return (weights * (values - scale[:, None] * q - least[:, None]) ** 2).sum(axis=1).min()


def test_ranges_are_nearly_as_good_as_the_best_of_hundreds():
    values = normal(256, 32, seed=2)
    wide = values.astype(np.float64)
    weights = np.abs(wide) + np.sqrt((wide**2).mean(axis=1, keepdims=True))
    found = dequantize(quantize(values, Format.Q5_1), Format.Q5_1)
    ours = (weights * (found - wide) ** 2).sum()
    assert ours < 1.05 * sum(best_range(row, w, 31) for row, w in zip(wide, weights, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_importance_moves_the_error_to_columns_that_matter_less(name):
    values, fmt = normal(64, 256, seed=3), Format[name]
    importance = np.where(np.arange(256) % 2 == 0, 100.0, 0.01).astype(np.float32)
    plain = (dequantize(quantize(values, fmt), fmt) - values) ** 2
    weighed = (dequantize(quantize(values, fmt, importance), fmt) - values) ** 2
    if name == "Q8_0":  # has nothing to choose
        assert np.array_equal(plain, weighed)
    else:
        assert weighed[:, ::2].sum() < plain[:, ::2].sum()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-38, 1e-8, 1.0, 6e4, 3e38])
def test_any_magnitude_gives_finite_numbers(name, scale):
    fmt = Format[name]
    values = (np.clip(normal(4, 512, seed=5, scale=1.0), -1, 1).astype(np.float64) * scale).astype(np.float32)
    found = dequantize(quantize(values, fmt), fmt)
    assert np.isfinite(found).all()
    if scale == 0.0:
        assert not found.any()


@pytest.mark.parametrize("name", [name for name in ("MXFP4", "NVFP4", "IQ4_NL", "IQ4_XS") if name in NAMES])
def test_zeros_beside_the_smallest_numbers_stay_zero(name):
    # The scale of such a block may have no finite inverse in float32.
    fmt = Format[name]
    values = np.zeros((1, 512), np.float32)
    values[0, ::16] = 1e-45
    found = dequantize(quantize(values, fmt), fmt).reshape(values.shape)
    assert not found[values == 0].any()


@pytest.mark.parametrize("name", NAMES)
def test_constant_and_one_sided_rows_are_expressed(name):
    fmt = Format[name]
    rows = np.stack([np.full(256, 0.5), np.full(256, -0.5), np.linspace(0.1, 1, 256)]).astype(np.float32)
    for row in rows:
        assert relative_error(row, quantize(row, fmt), fmt) < max(0.12, 1.2 * LIMITS[name])


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_the_same_for_every_number_of_threads_and_source(name):
    fmt = Format[name]
    halves = normal(300, 512, seed=6).astype(np.float16)
    source = halves.view(np.uint8).reshape(-1)
    made = [
        _native.Quantizer(threads).convert(Format.F16.value, source, fmt.value, 512) for threads in (1, 2, 3)
    ]
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[0], made[2])
    assert np.array_equal(made[0].reshape(300, -1), quantize(halves.astype(np.float32), fmt))


def test_plain_floats_are_rounded_to_nearest_even():
    values = np.float32([1.0, 1 + 2**-11, 1 + 3 * 2**-11, 65504.0, 1e-8, -2.5])
    assert np.array_equal(quantize(values, Format.F16).view(np.float16), values.astype(np.float16))
    bits = quantize(np.float32([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -3e38]), Format.BF16).view(np.uint16)
    assert bits.tolist() == [0x3F80, 0x3F80, 0x3F82, 0xFF62]


def test_halves_do_not_overflow():
    assert dequantize(quantize(np.float32([1e6, -1e6]), Format.F16), Format.F16).tolist() == [65504, -65504]


def test_native_code_checks_its_arguments():
    quantizer, data = _native.Quantizer(1), np.zeros(128, np.uint8)
    with pytest.raises(ValueError, match="threads must be between 1 and 1024"):
        _native.Quantizer(0)
    with pytest.raises(ValueError, match="whole blocks of both formats"):
        quantizer.convert(0, data, Format.Q4_K.value, 32)
    with pytest.raises(ValueError, match="not whole rows"):
        quantizer.convert(0, data[:64], Format.Q4_0.value, 32)
    with pytest.raises(ValueError, match="only be read"):
        quantizer.convert(0, data, Format.Q8_K.value, 32)
    with pytest.raises(ValueError, match="format 99 is not known"):
        quantizer.convert(99, data, 2, 32)
    with pytest.raises(ValueError, match="one number for each column"):
        quantizer.convert(0, data, Format.Q4_0.value, 32, np.ones(31, np.float32))
    with pytest.raises(ValueError, match="between 0 and 1e12"):
        quantizer.convert(0, data, Format.Q4_0.value, 32, np.full(32, np.nan, np.float32))
    wrong = np.zeros(64, np.float32)
    wrong[40] = np.inf
    with pytest.raises(ValueError, match="row 1 holds NaN or infinity"):
        quantizer.convert(0, wrong.view(np.uint8), Format.Q4_0.value, 32)
