"""exact=False: one row through plain layers with fewer kernels, near the exact way, in kernels only."""

import numpy as np
import pytest

from stretto.backends.torch.device import has_triton, is_interpreting
from tiny_models import decoded_logits, tiny_file, tiny_spec

torch = pytest.importorskip("torch", reason="torch is an extra")
if not has_triton() or not (is_interpreting() or torch.cuda.is_available()):
    pytest.skip("kernels need a GPU, or TRITON_INTERPRET=1 and triton", allow_module_level=True)

from stretto.backends.torch import lean  # noqa: E402
from stretto.backends.torch.attention_layer import AttentionLayer  # noqa: E402
from stretto.backends.torch.backend import TorchBackend  # noqa: E402

DEVICE = "cpu" if is_interpreting() else "cuda"


def backend(name, exact):
    return TorchBackend(tiny_file(name), tiny_spec(name), 32, DEVICE, "f32", "high", exact=exact)


@pytest.mark.parametrize("name", ["llama"] if is_interpreting() else ["llama", "qwen2", "qwen3"])
def test_it_is_near_the_exact_way(name):
    fast = backend(name, exact=False)
    assert lean.is_plain(fast.decoder)
    usual = backend(name, exact=True)
    np.testing.assert_allclose(decoded_logits(fast, name), decoded_logits(usual, name), atol=1e-4)


@pytest.mark.parametrize("kv", ["f32"] if is_interpreting() else ["f32", "f16"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_one_kernel_attends_as_two_do(name, kv, monkeypatch):
    def logits():
        precision = "high" if kv == "f32" else "standard"
        opened = TorchBackend(tiny_file(name), tiny_spec(name), 32, DEVICE, kv, precision, exact=False)
        return decoded_logits(opened, name)

    calls = []
    run = AttentionLayer.attend_row
    monkeypatch.setattr(AttentionLayer, "attend_row", lambda *given: calls.append(1) or run(*given))
    one = logits()
    assert calls
    monkeypatch.setattr(AttentionLayer, "is_one_kernel", lambda *given: False)
    np.testing.assert_allclose(one, logits(), atol=1e-5 if kv == "f32" else 2e-2)


@pytest.mark.parametrize("name", ["gemma3", "qwen3moe", "lfm2"])
def test_layers_that_are_not_plain_go_the_usual_way(name):
    assert not lean.is_plain(backend(name, exact=False).decoder)
