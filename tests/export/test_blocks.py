"""Blocks of files in ONNX's form: every number is the file's own."""

import numpy as np
import pytest

pytest.importorskip("onnx")

from stretto.export.products import least_bits, read_blocks, round_to_blocks
from stretto.weights import formats
from stretto.weights.formats import Format
from stretto.weights.tensor import Tensor

HALVES = {  # where the half floats of a block are
    Format.Q4_0: [0],
    Format.Q4_1: [0, 2],
    Format.Q5_0: [0],
    Format.Q5_1: [0, 2],
    Format.Q8_0: [0],
    Format.Q4_K: [0, 2],
    Format.Q5_K: [0, 2],
    Format.Q6_K: [208],
}


def random_rows(fmt, rows=3, columns=512):
    """Bytes of any value, with scales that are ordinary numbers."""
    random = np.random.default_rng(int(fmt))
    data = random.integers(0, 256, (rows, columns // fmt.block, fmt.size), dtype=np.uint8)
    for at in HALVES[fmt]:
        scales = random.normal(0, 0.01, data.shape[:2]).astype(np.float16)
        data[..., at : at + 2] = scales[..., None].view(np.uint8)
    return data.reshape(rows, -1)


@pytest.mark.parametrize("fmt", HALVES, ids=lambda fmt: fmt.name)
def test_blocks_hold_the_numbers_of_the_file(fmt):
    data = random_rows(fmt)
    blocks = read_blocks(data, fmt)
    np.testing.assert_allclose(blocks.floats(), formats.dequantize(data, fmt), rtol=2e-6, atol=2e-6)
    assert blocks.bits == (4 if fmt.name.startswith("Q4") else 8)


def test_rows_can_be_taken_in_another_order():
    data = random_rows(Format.Q4_1)
    blocks = read_blocks(data, Format.Q4_1)
    np.testing.assert_array_equal(blocks.reorder(np.array([2, 0])).floats(), blocks.floats()[[2, 0]])


def test_formats_without_such_blocks_have_none():
    assert read_blocks(np.zeros((1, 128), np.uint8), Format.F32) is None


@pytest.mark.parametrize(("bits", "close"), [(8, 0.02), (4, 0.3)])
def test_rounding(bits, close):
    weights = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    blocks = round_to_blocks(weights, bits)
    assert blocks.bits == bits
    assert np.abs(blocks.floats() - weights).max() < close


def test_four_bits_are_packed_low_half_first():
    blocks = read_blocks(random_rows(Format.Q4_0), Format.Q4_0)
    packed = blocks.pack()
    np.testing.assert_array_equal(packed & 15, blocks.q[..., 0::2])
    np.testing.assert_array_equal(packed >> 4, blocks.q[..., 1::2])


def test_files_that_have_chosen_few_bits_are_not_rounded_to_four():
    def tensor(name, fmt):
        return Tensor(name, (2, 256), fmt, 0, np.zeros((2, fmt.row_bytes(256)), np.uint8))

    assert least_bits([tensor("blk.0.attn_q.weight", Format.Q8_0)]) == 4
    assert least_bits([tensor("token_embd.weight", Format.Q4_K)]) == 4
    mixed = [tensor("blk.0.attn_v.weight", Format.Q8_0), tensor("blk.0.attn_q.weight", Format.Q4_K)]
    assert least_bits(mixed) == 8
