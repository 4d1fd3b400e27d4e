"""Prefetching the weights of the next product: what is asked for, and that results do not depend on it."""

import numpy as np
import pytest

from stretto.weights.formats import Format
from tiny_models import decoded_logits, tiny_file, tiny_spec

torch = pytest.importorskip("torch", reason="torch is an extra")

from stretto.backends.torch import matrix as prefetch  # noqa: E402
from stretto.backends.torch.backend import TorchBackend  # noqa: E402
from stretto.backends.torch.device import is_hopper_or_newer  # noqa: E402
from stretto.backends.torch.layouts import pack  # noqa: E402
from stretto.backends.torch.matrix import Dense, Matrix  # noqa: E402


def dense(rows, columns, dtype=torch.bfloat16):
    weight = torch.zeros(rows, columns, dtype=dtype)
    return Matrix(columns, dtype, (Dense(weight),), (Format.BF16,))


def asked(matrix):
    found = prefetch.make_prefetch(matrix)
    return found and (found.rows, found.stride, found.size)


def test_all_of_a_small_matrix_is_asked_for():
    assert asked(dense(96, 64)) == (96, 128, 128)


def test_the_beginning_of_each_row_of_a_large_one(monkeypatch):
    monkeypatch.setattr(prefetch, "PREFETCHED_BYTES", 1000)
    assert asked(dense(10, 256)) == (10, 512, 96)  # 1,000 bytes of ten rows, in units of 16


def test_programs_beside_each_row_ask_for_all_of_it():
    found = prefetch.make_prefetch(dense(1000, 64))
    assert found.grid(1) * prefetch.BLOCK >= 1000 > (found.grid(1) - 1) * prefetch.BLOCK
    assert found.grid(8) == 1


def test_rows_that_cannot_be_prefetched_are_left_out():
    assert asked(dense(8, 60)) is None  # 120 bytes are no multiple of 16
    blocks = torch.zeros(32, 2 * 18, dtype=torch.uint8)
    assert asked(Matrix(64, torch.bfloat16, (pack(blocks, Format.Q4_0, 64),), (Format.Q4_0,))) is None


def test_a_cpu_does_not_prefetch():
    assert not is_hopper_or_newer(torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs of steps need a GPU")
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3moe"])
def test_results_do_not_depend_on_prefetching(name):
    models = [TorchBackend(tiny_file(name), tiny_spec(name), 32, "cuda", "f16", "standard") for _ in range(2)]
    models[0].steps.prefetches = False
    np.testing.assert_array_equal(decoded_logits(models[0], name), decoded_logits(models[1], name))
