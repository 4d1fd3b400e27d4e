"""Norms, sums and rotations of rows: kernels on a GPU or in Triton's interpreter against plain torch."""

from functools import partial
from types import SimpleNamespace

import pytest

from stretto.backends.torch.device import has_triton, is_interpreting

torch = pytest.importorskip("torch", reason="torch is an extra")
if not has_triton() or not (is_interpreting() or torch.cuda.is_available()):
    pytest.skip("kernels need a GPU, or TRITON_INTERPRET=1 and triton", allow_module_level=True)

from stretto.backends.torch import feed_layer, rowwise  # noqa: E402
from stretto.backends.torch.attention_layer import AttentionLayer  # noqa: E402
from stretto.backends.torch.rowwise import NormWeights, add_norm, norm  # noqa: E402
from stretto.backends.torch.weights import Weights  # noqa: E402
from stretto.models.parts import Norm  # noqa: E402
from tiny_models import tiny_file, tiny_spec  # noqa: E402
from torch_backends import RUN, SOME  # noqa: E402

DEVICE = torch.device("cpu" if is_interpreting() else "cuda")


def random(*shape):
    torch.manual_seed(sum(shape))
    return torch.randn(*shape, device=DEVICE)


def weights(width, kind="rms", bias=False, groups=1):
    part = Norm("norm", 1e-5, kind)
    gain = random(groups, width) + 1 if groups > 1 else random(width) + 1
    return NormWeights(part, gain, random(width) if bias else None)


def plainly(monkeypatch, function):
    """What plain torch gives."""
    with monkeypatch.context() as patched:
        patched.setattr(rowwise, "uses_kernels", lambda tensor: False)
        patched.setattr(feed_layer, "uses_kernels", lambda tensor: False)
        return function()


@pytest.mark.parametrize("width", [8, 80, 300])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norms_are_those_of_plain_torch(width, kind, monkeypatch):
    x, w = random(5, width), weights(width, kind, bias=kind == "layer")
    expected = plainly(monkeypatch, lambda: norm(x, w, torch.float32))
    torch.testing.assert_close(norm(x, w, torch.float32), expected, rtol=1e-5, atol=1e-5)


def test_each_head_may_have_a_gain_of_its_own(monkeypatch):
    x, w = random(4, 3, 16), weights(16, groups=3)
    expected = plainly(monkeypatch, lambda: norm(x, w, torch.float32))
    torch.testing.assert_close(norm(x, w, torch.float32), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_a_sum_and_its_norm_are_one_kernel(post, keep, monkeypatch):
    y, w, after = random(6, 48), weights(48), weights(48) if post else None
    x, plain_x = random(6, 48) * 2, random(6, 48) * 2
    expected = plainly(monkeypatch, lambda: add_norm(plain_x, y, 0.5, after, w, torch.float32, keep=keep))
    torch.testing.assert_close(add_norm(x, y, 0.5, after, w, torch.float32, keep=keep), expected)
    torch.testing.assert_close(x, plain_x)


def test_gates_below_the_cutoff_are_zero(monkeypatch):
    gate = random(4, 100)[:, :70]
    expected = plainly(monkeypatch, lambda: feed_layer.cut_off(gate, 0.3))
    torch.testing.assert_close(feed_layer.cut_off(gate, 0.3), expected, rtol=1e-5, atol=1e-6)
    assert (expected == 0).any()


@pytest.mark.parametrize("name", SOME if is_interpreting() else RUN)
def test_queries_and_keys_are_turned_as_in_plain_torch(name, monkeypatch):
    """Each attention of each architecture: norms before or after, pairs, gates, temperatures, shared K/V."""
    spec, n, n_cells = tiny_spec(name), 3, 8
    w = Weights(tiny_file(name), spec, DEVICE, torch.float32, n_positions=64)
    found = {layer.attention: i for i, layer in enumerate(spec.layers) if layer.attention is not None}
    for mixer, i in found.items():
        layer = AttentionLayer(mixer, w.layer(i), i, spec.n_embd)
        projected = random(n, layer.projection.rows)
        run = SimpleNamespace(
            positions=torch.tensor([5, 0, 40], dtype=torch.int32, device=DEVICE),
            cells=torch.tensor([7, 1, 4], dtype=torch.int32, device=DEVICE),
            prefetch=lambda matrix: None,
        )
        run.turns = run.positions
        shape = n_cells, mixer.n_kv_head, mixer.head_size
        made = []
        for turn in (layer.turn, layer.turn_kernel):
            keys, values = torch.zeros(shape, device=DEVICE), torch.zeros(shape, device=DEVICE)
            q = plainly(monkeypatch, partial(turn, projected, keys, values, run))
            made.append((q, keys, values))
        for expected, got in zip(*made, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
