"""Products of each head with a matrix of its own, plain and in Triton's interpreter."""

import pytest

from stretto.backends.torch.device import is_interpreting

torch = pytest.importorskip("torch", reason="torch is an extra")
heads = pytest.importorskip("stretto.backends.torch.attention_layer")


@pytest.fixture(params=["plain", "kernels"])
def version(request, monkeypatch):
    if request.param == "kernels" and not is_interpreting():
        pytest.skip("kernels need TRITON_INTERPRET=1 and triton")
    monkeypatch.setattr(heads, "uses_kernels", lambda _: request.param == "kernels")
    return request.param


def example(n, dtype=torch.float32):
    made = torch.Generator().manual_seed(n)
    whole = torch.randn(n, 3, 90, generator=made).to(dtype)
    return whole[..., :72], torch.randn(3, 40, 72, generator=made).to(dtype)  # of a larger tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_each_head_has_a_matrix_of_its_own(version, dtype):
    x, w = example(40, dtype)
    expected = torch.einsum("nhd,hrd->nhr", x.double(), w.double())
    found = heads.head_product(x, w)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), expected, atol=2e-2 if dtype == torch.float16 else 1e-4)


def test_other_rows_change_no_bits(version):
    x, w = example(40)
    together = heads.head_product(x, w)
    assert torch.equal(torch.cat([heads.head_product(x[i : i + 1], w) for i in range(5)]), together[:5])
    assert torch.equal(heads.head_product(x[3:20], w), together[3:20])


def test_no_rows_give_no_rows(version):
    x, w = example(4)
    assert heads.head_product(x[:0], w).shape == (0, 3, 40)
