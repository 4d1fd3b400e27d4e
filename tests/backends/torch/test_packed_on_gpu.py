"""Products with packed weights on a GPU: a row has the same bits among others, and experts in any blocks."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'stretto[cuda]'")

import torch

from packed_parts import PACKED, error, packed, rounded
from stretto.backends.torch import matrix, octets
from stretto.backends.torch.cuda import router
from stretto.backends.torch.feed_layer import assign
from torch_backends import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="CUDA C++ kernels need a GPU")


@pytest.mark.parametrize("fmt", PACKED, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize(("rows", "columns"), [(1032, 4096), (4096, 2816), (256, 14336)])
def test_any_number_of_rows_has_the_same_bits(fmt, rows, columns):
    part = packed(fmt, rows, columns, DEVICE)
    x, bias = torch.randn(130, columns, device=DEVICE).bfloat16(), torch.randn(rows, device=DEVICE)
    whole = torch.full((130, rows // 2), torch.nan, device=DEVICE)
    octets.multiply(x, part, whole, bias, 1, True)
    y = rounded(x, part) @ matrix.unpack(part).double().T + bias
    assert error(whole, torch.nn.functional.silu(y[:, ::2]) * y[:, 1::2]) < 1e-5
    for n in (1, 2, 3, 8, 9, 30, 33, 65):
        out = torch.full((n, rows // 2), torch.nan, device=DEVICE)
        octets.multiply(x[:n], part, out, bias, 1, True)
        assert torch.equal(out, whole[:n])


@pytest.mark.parametrize("fmt", PACKED, ids=lambda fmt: fmt.name)
def test_pairs_have_the_same_bits_in_blocks_of_any_size(fmt):
    n_expert, rows, n, used = 16, 768, 40, 4
    part, x = packed(fmt, n_expert * rows, 2048, DEVICE), torch.randn(n, 2048, device=DEVICE).bfloat16()
    chosen = torch.stack([torch.randperm(n_expert, device=DEVICE)[:used] for _ in range(n)]).int()
    alone = torch.full((n * used, rows), torch.nan, device=DEVICE)
    octets.few(x, part, alone, None, 0, False, chosen=octets.Chosen(rows, chosen.reshape(-1), None, used))
    for size in (8, 16, 32):
        out = torch.full_like(alone, torch.nan)
        blocks = octets.Chosen(rows, *assign(chosen, n_expert).blocks(size), used)
        octets.many(octets.round_rows(x, part), part, out, None, 0, False, chosen=blocks)
        assert torch.equal(out, alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_router_sums_rows_in_one_order(dtype):
    x, w = torch.randn(300, 2880, device=DEVICE).to(dtype), torch.randn(32, 2880, device=DEVICE)
    y = router(x, w, None)
    assert error(y, x.double() @ w.double().T) < 1e-5
    assert all(torch.equal(router(x[n : n + 1], w, None), y[n : n + 1]) for n in (0, 7, 299))
