"""A pass whose tokens the device alone knows has the logits of one that the host gives them to."""

import numpy as np
import pytest

from stretto.backends.batch import Batch, Decoding
from stretto.backends.torch.device import has_triton, is_interpreting
from stretto.cache.cells import Cells
from stretto.sampling.params import SamplingParams
from tiny_models import tiny_file, tiny_spec

torch = pytest.importorskip("torch", reason="torch is an extra")
if not has_triton() or not (is_interpreting() or torch.cuda.is_available()):
    pytest.skip("kernels need a GPU, or TRITON_INTERPRET=1 and triton", allow_module_level=True)

from stretto.backends.torch.backend import TorchBackend  # noqa: E402

DEVICE = "cpu" if is_interpreting() else "cuda"
PARAMS, UNIFORMS = [SamplingParams(temperature=0.9, top_k=20)] * 3, [0.1, 0.5, 0.9]


def begun():
    """A model, its cells, and the logits of three prompts."""
    backend = TorchBackend(tiny_file("llama"), tiny_spec("llama"), 32, DEVICE, "f32", "high")
    cells, batch = Cells(32), Batch()
    for sequence in range(3):
        batch.extend([5 + sequence, 9], 0, [sequence])
        batch.extend([7 * sequence], 2, [sequence], logits=True)
    batch.place(cells)
    return backend, cells, backend.forward(batch)


def logits(rows):
    return np.stack([row.numpy() for row in rows])


@pytest.mark.parametrize("which", [None, [0, 2]])
def test_logits_are_those_of_tokens_that_the_host_gives(which):
    backend, cells, rows = begun()
    tokens = backend.sample_rows(rows, PARAMS, UNIFORMS)
    alive = range(3) if which is None else which
    expected = logits(backend.forward(Decoding(cells, [tokens[i] for i in alive], list(alive))))
    backend, cells, rows = begun()
    backend.queue_rows(rows, PARAMS, UNIFORMS)
    found = backend.forward_queued(Decoding(cells, [0] * len(alive), list(alive)), which)
    assert backend.take_rows(3) == tokens
    assert len(set(tokens)) > 1
    np.testing.assert_array_equal(logits(found), expected)
