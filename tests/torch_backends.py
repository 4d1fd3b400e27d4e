"""Tiny models on the torch backend: where they run, how near they must be, and short ways to run them.

STRETTO_TEST_DEVICE says where: "cuda", or "cpu", which is plain torch, or our kernels in Triton's interpreter
if TRITON_INTERPRET=1. Without it tests run on the GPU if there is one.
"""

import os

import numpy as np
import pytest

from stretto.backends.base import host_rows
from stretto.backends.torch.device import is_interpreting, missing
from stretto.cache.cells import Cells
from tiny_models import ALL, in_slots, text_batch, tiny_file, tiny_spec

pytest.importorskip("torch", reason="torch is not installed: pip install 'stretto[cuda]'")

DEVICE = os.environ.get("STRETTO_TEST_DEVICE") or ("cpu" if missing("cuda") else "cuda")
INTERPRETED = DEVICE == "cpu" and is_interpreting()
# Kernels have one order of sums, whatever is in the batch; plain torch has not.
SAME_BITS = DEVICE == "cuda" or INTERPRETED
NEAR = 2e-4  # of logits with about unit variance, in float32

# Models with each kind of part: for most tests without a GPU, and fewer in the interpreter, which is slow.
SOME = (
    *("llama", "gemma3", "phi3-window", "command-r", "hunyuan-dense", "gpt-oss", "qwen2moe", "deepseek3"),
    *("gemma3n", "gemma4-e", "qwen35", "lfm2", "nemotron_h", "falcon-h1"),
)
FEW = ("llama", "gpt-oss", "deepseek3", "qwen35", "falcon-h1")
REFUSED = (
    "arwkv7",
    "deepseek32",
    "falcon-mamba",
    "glm-dsa",
    "jamba",
    "kimi-linear",
    "mamba",
    "rwkv7",
)  # with layers that this backend lacks
RUN = [name for name in ALL if name not in REFUSED]
EVERY = FEW if INTERPRETED else RUN
MODELS = FEW[:1] if INTERPRETED else RUN if DEVICE == "cuda" else SOME
not_interpreted = pytest.mark.skipif(INTERPRETED, reason="takes too long in Triton's interpreter")
RECURRENT = [name for name in MODELS if tiny_spec(name).recurrent]


def torch_backend(name, n_cells=64, kv="f32", precision="high", n_slots=3, spec=None, file=None):
    """A tiny model in float32, unless told otherwise, with empty states."""
    from stretto.backends.torch.backend import TorchBackend

    file, spec = file or tiny_file(name), spec or tiny_spec(name)
    backend = TorchBackend(file, spec, n_cells, DEVICE, kv, precision, n_slots)
    backend.clear_slots(np.arange(backend.n_slots, dtype=np.int32))
    return backend


def run(backend, cells, batch, slots=None):
    """float32[n_wanted, n_vocab] of a batch that is placed here; its rows advance the states in `slots`."""
    batch.place(cells)
    if backend.spec.recurrent:
        in_slots(batch, [0] * len(batch) if slots is None else slots)
    return host_rows(backend.forward(batch))


def in_pieces(backend, tokens, sizes, cells=None, slot=1):
    """float32[n, n_vocab] of a text, so many tokens at a time."""
    cells, rows, at = cells or Cells(backend.n_cells), [], 0
    for size in sizes:
        part = tokens[at : at + size]
        rows.append(run(backend, cells, text_batch(part, at), [slot] * len(part)))
        at += size
    return np.concatenate(rows)


def same(found, expected, tolerance=NEAR):
    """Assert the same bits where kernels run, and that numbers are near in plain torch."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    if SAME_BITS:
        np.testing.assert_array_equal(found, expected)
    else:
        near(found, expected, tolerance)


def near(found, expected, tolerance=NEAR):
    """Assert that logits differ by little, in terms of how much they vary."""
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, float(np.std(expected))))
