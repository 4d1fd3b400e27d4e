"""Formats against `gguf.quants`, bit for bit, on random blocks."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize

from stretto import _native
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.errors import InvalidRequest, ModelError
from stretto.models import read_spec
from stretto.weights.formats import READABLE, WRITABLE, Format, dequantize, quantize
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor
from stretto.weights.writer import Quantized, write_gguf
from tiny_models import text_logits, tiny_file

GOLDEN = Path(__file__).parent.parent / "data" / "formats.npz"  # made by scripts/make_format_golden.py
SMALL = "MXFP4 NVFP4 TQ1_0 TQ2_0 Q1_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S".split()  # noqa: SIM905
PROMISED = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS".split()  # noqa: SIM905
PROMISED += SMALL


def test_promised_formats_are_there():
    assert {f.name for f in READABLE} == set(PROMISED)
    assert {"F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS"} <= {f.name for f in WRITABLE} <= set(PROMISED)


def test_table_agrees_with_gguf():
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        fmt = Format(kind.value)
        assert (fmt.name, fmt.block, fmt.size) == (kind.name, block, size)


# Formats that no model file has its weights in: ggml makes Q8_1 and Q8_K while it computes; the others are
# plain numbers that models have for counts.
UNREAD = {
    **dict.fromkeys(("Q8_1", "Q8_K"), "made while computing"),
    **dict.fromkeys(("I8", "I16", "I32", "I64", "F64"), "no weights"),
}


@pytest.mark.parametrize("name", sorted({kind.name for kind in gguf.GGMLQuantizationType} | {"Q2_0"}))
def test_every_type_of_ggml_is_read_or_has_a_reason(name):
    fmt = Format[name]
    data = np.zeros((1, fmt.size), np.uint8)
    if name in UNREAD:
        with pytest.raises(ModelError, match=f"tensors in {name} are not supported"):
            dequantize(data, fmt)
    else:
        assert dequantize(data, fmt).shape == (1, fmt.block)


def q2_0(rng, rows, columns):
    """Blocks of Q2_0, and their numbers as dequantize_row_q2_0 of ggml computes them."""
    data = rng.integers(0, 256, (rows, columns // 64, 18), dtype=np.uint8)
    data[..., :2] = rng.uniform(-0.1, 0.1, (rows, columns // 64, 1)).astype("<f2").view(np.uint8)
    numbers = np.empty((rows, columns), np.float32)
    for row in range(rows):
        for j in range(columns):
            block = data[row, j // 64]
            q = int(block[2 + j % 64 // 4]) >> j % 4 * 2 & 3
            numbers[row, j] = (q - 1) * np.float32(block[:2].view("<f2")[0])
    return data.reshape(rows, -1), numbers


def test_q2_0_is_read_exactly(tmp_path):
    data, numbers = q2_0(np.random.default_rng(3), 6, 192)
    assert np.array_equal(dequantize(data, Format.Q2_0), numbers)
    path = tmp_path / "q2_0.gguf"
    stored = Tensor("blk.0.ffn_up.weight", (2, 3, 192), Format.Q2_0, 0, data.reshape(2, 3, -1))
    write_gguf(path, {"general.architecture": "llama"}, {stored.name: stored})
    with GGUF(path) as file:
        found = file.tensors[stored.name]
        assert (found.format, found.shape, found.nbytes) == (Format.Q4_0, stored.shape, 2 * data.nbytes)
        assert found.data.nbytes == found.nbytes
        assert np.array_equal(found.dequantize(), numbers.reshape(stored.shape))
        assert len(file.fingerprint()()) == 64
        file.forget(found)
    with pytest.raises(InvalidRequest, match="whole blocks of 18"):
        dequantize(data[:, :17], Format.Q2_0)


def test_a_model_in_q2_0_computes_what_the_same_in_float32_does(tmp_path):
    source, rng = tiny_file("granite"), np.random.default_rng(4)
    tensors = {0: dict(source.tensors), 1: dict(source.tensors)}
    n_ff, n_embd = 64, source.tensors["blk.0.ffn_down.weight"].shape[0]
    for layer in range(source.metadata["granite.block_count"]):
        for name, shape in (("gate", (n_ff, n_embd)), ("up", (n_ff, n_embd)), ("down", (n_embd, n_ff))):
            key = f"blk.{layer}.ffn_{name}.weight"
            numbers = rng.normal(0, 0.1, shape).astype(np.float32)
            tensors[0][key] = tensors[1][key] = Quantized(numbers, Format.F32)
        data, numbers = q2_0(rng, n_embd, n_ff)
        tensors[0][key] = Tensor(key, (n_embd, n_ff), Format.Q2_0, 0, data)
        tensors[1][key] = Quantized(numbers, Format.F32)
    logits = []
    for i, found in tensors.items():
        write_gguf(tmp_path / f"{i}.gguf", {**source.metadata, "granite.feed_forward_length": n_ff}, found)
        with GGUF(tmp_path / f"{i}.gguf") as file:
            spec = read_spec(file, 64)
            logits.append(text_logits(ReferenceBackend(file, spec, 64), np.arange(12)))
            logits.append(
                text_logits(NativeBackend(file, spec, 64, 1, "f32", precision="high"), np.arange(12))
            )
    assert np.array_equal(logits[0], logits[2])
    assert np.abs(logits[1] - logits[0]).max() < 0.02 * max(1.0, logits[0].std())


def same_bits(ours, theirs):
    """As bits, so that NaN and −0 count too; only the payload of a NaN from arithmetic is free."""
    return ((ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))).all()


@pytest.mark.golden
@pytest.mark.parametrize("name", SMALL)
def test_dequantize_equals_llamacpp(name):
    with np.load(GOLDEN) as golden:
        ours = dequantize(golden[f"{name} bytes"], Format[name])
        assert same_bits(ours, golden[f"{name} numbers"])


@pytest.mark.golden
@pytest.mark.parametrize("name", [name for name in PROMISED if name != "Q1_0"])  # which gguf cannot read
def test_dequantize_equals_gguf(name):
    fmt = Format[name]
    columns = 4096
    raw = np.random.default_rng(7).integers(0, 256, (256, fmt.row_bytes(columns)), dtype=np.uint8)
    ours = dequantize(raw, fmt)
    with np.errstate(all="ignore"):  # random scales include NaN and infinity
        theirs = gguf_dequantize(raw, gguf.GGMLQuantizationType(fmt.value)).astype(np.float32)
    assert ours.shape == (256, columns)
    assert same_bits(ours, theirs)
    assert np.isfinite(ours).mean() > 0.5  # or the comparison would say little


def test_every_half_is_converted_exactly():
    halves = np.arange(1 << 16, dtype=np.uint16)
    ours = dequantize(halves.view(np.uint8), Format.F16)
    with np.errstate(invalid="ignore"):  # some processors tell NumPy of signalling NaNs
        theirs = halves.view(np.float16).astype(np.float32)
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours[~nan].view(np.uint32), theirs[~nan].view(np.uint32))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1.0, 6e4, 3e38])
def test_quantize_survives_any_magnitude(name, scale):
    fmt = Format[name]
    values = np.clip(np.random.default_rng(5).standard_normal((4, 64)), -1, 1).astype(np.float64) * scale
    data = quantize(values.astype(np.float32), fmt)
    assert data.shape == (4, fmt.row_bytes(64))
    if 1e-3 < scale < 65504:
        error = np.abs(dequantize(data, fmt) - values).max() / scale
        assert error < {"Q8_0": 0.006, "Q4_0": 0.13, "Q4_1": 0.07}[name]


def test_wrong_arguments_raise():
    good = quantize(np.ones((2, 64), np.float32), Format.Q8_0)
    with pytest.raises(ModelError, match=r"Q8_K are not supported; supported are F32"):
        dequantize(np.zeros((1, 292), np.uint8), Format.Q8_K)
    with pytest.raises(InvalidRequest, match="whole blocks of 34"):
        dequantize(good[:, :-1], Format.Q8_0)
    with pytest.raises(InvalidRequest, match="uint8"):
        dequantize(good.astype(np.int16), Format.Q8_0)
    with pytest.raises(InvalidRequest, match="cannot quantise to Q8_K; use one of F32, F16, Q4_0, Q4_1"):
        quantize(np.ones(256, np.float32), Format.Q8_K)
    with pytest.raises(InvalidRequest, match="33 numbers cannot be Q4_0: it comes in blocks of 32"):
        quantize(np.ones(33, np.float32), Format.Q4_0)
    with pytest.raises(InvalidRequest, match="NaN or infinity"):
        quantize(np.full(32, np.nan, np.float32), Format.Q4_0)


def test_native_code_checks_for_itself():
    with pytest.raises(ValueError, match="format 99 is not known"):
        _native.dequantize(99, np.zeros(34, np.uint8))
    with pytest.raises(ValueError, match="33 bytes are not whole blocks of 34"):
        _native.dequantize(Format.Q8_0, np.zeros(33, np.uint8))
    with pytest.raises(TypeError):
        _native.dequantize(Format.Q8_0, np.zeros(34, np.int8))


def test_unaligned_and_strided_bytes():
    data = quantize(np.linspace(-1, 1, 64, dtype=np.float32), Format.Q4_1)
    odd = np.zeros(len(data) + 1, np.uint8)
    odd[1:] = data
    assert np.array_equal(dequantize(odd[1:], Format.Q4_1), dequantize(data, Format.Q4_1))
    strided = np.repeat(data, 2)[::2]
    assert np.array_equal(dequantize(strided, Format.Q4_1), dequantize(data, Format.Q4_1))
