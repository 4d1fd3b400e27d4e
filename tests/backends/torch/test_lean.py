"""exact=False: one row through plain layers with fewer kernels, near the exact way, in kernels only."""

import numpy as np
import pytest

from stretto.backends.torch.device import has_triton, is_interpreting
from tiny_models import decoded_logits, tiny_file, tiny_spec

torch = pytest.importorskip("torch", reason="torch is an extra")
if not has_triton() or not (is_interpreting() or torch.cuda.is_available()):
    pytest.skip("kernels need a GPU, or TRITON_INTERPRET=1 and triton", allow_module_level=True)

from stretto.backends.torch import chain, cuda, lean  # noqa: E402
from stretto.backends.torch.attention_layer import AttentionLayer  # noqa: E402
from stretto.backends.torch.backend import TorchBackend  # noqa: E402
from stretto.backends.torch.matrix import Dense, Matrix, product  # noqa: E402
from stretto.backends.torch.rowwise import NormWeights  # noqa: E402
from stretto.models.parts import Norm  # noqa: E402
from stretto.weights.formats import Format  # noqa: E402

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


@pytest.mark.skipif(
    is_interpreting() or torch.cuda.get_device_capability() != chain.CAPABILITY,
    reason="blocks meet on GPUs of compute capability 9.0",
)
@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("sizes", [(256, 384, 640, 136), (192, 64, 320, 3000), (1024, 2048, 3072, 4096)])
def test_a_link_has_the_bits_of_its_products_and_norms(sizes, n):
    width, attended, inner, rows = sizes
    torch.manual_seed(n)

    def leg(rows, columns, norm=None, interleaved=False):
        weight = torch.randn(rows, columns, device="cuda").bfloat16() * columns**-0.5
        made = Matrix(columns, torch.bfloat16, (Dense(weight.contiguous()),), (Format.BF16,), interleaved)
        return chain.Leg(made, torch.randn(rows, device="cuda"), norm)

    def norm():
        return NormWeights(Norm("norm", 1e-5), torch.rand(width, device="cuda") + 0.5, None)

    legs = (
        leg(width, attended),
        leg(2 * inner, width, norm(), interleaved=True),
        leg(width, inner),
        leg(rows, width, norm()),
    )
    x, mixed = torch.randn(n, width, device="cuda"), torch.randn(n, attended, device="cuda").bfloat16()
    counters, ours = chain.make_counters("cuda"), x.clone()
    link = chain.Link(legs, torch.float32)
    both = [link.run(ours if i else x.clone(), mixed, counters) for i in range(2)]  # the counters are 0 again

    def normed(y, leg):
        return cuda.add_rms(x, y, leg.norm.weight, leg.norm.part.eps, torch.bfloat16)

    made = product(mixed, legs[0].matrix, bias=legs[0].bias)
    made = product(normed(made, legs[1]), legs[1].matrix, bias=legs[1].bias, activation="silu")
    made = product(made, legs[2].matrix, bias=legs[2].bias)
    last = product(normed(made, legs[3]), legs[3].matrix, bias=legs[3].bias, out_dtype=torch.float32)
    assert torch.equal(ours, x)
    assert torch.equal(both[0], last)
    assert torch.equal(both[1], last)
    alone = chain.Link(legs[3:], torch.float32).run(x, x, counters)
    assert torch.equal(alone, last)
