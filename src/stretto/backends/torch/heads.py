"""Products of each head with a matrix of its own, for latent attention."""

from __future__ import annotations

from stretto.backends.torch.device import Tensor, uses_kernels


def head_product(x: Tensor, w: Tensor) -> Tensor:
    """x [n, heads, d] times w [heads, r, d], head by head: [n, heads, r], of x's dtype.

    The numbers of a head stand together in x; rows and heads may have gaps between them.
    """
    if uses_kernels(x):
        from stretto.backends.torch.kernels import heads as kernels

        return kernels.head_product(x, w)
    import torch

    rows = [torch.einsum("hd,hrd->hr", row.float(), w.float()) for row in x]
    return torch.stack(rows).to(x.dtype) if rows else x.new_empty((0, *w.shape[:2]))
