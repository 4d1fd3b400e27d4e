"""Operations on single rows: norms, sums, activations. Each is a kernel of ours, or plain torch on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.launching import Form, make_form
from stretto.backends.torch.matrix import BLOCK, Prefetch, prefetch_arguments
from stretto.models.parts import Norm

# A kernel, the weights that it takes (None: not there), and epsilons and groups.
Normalizing = tuple[Form, tuple[Tensor | None, ...], tuple[float, float, int]]
_FORMS: dict[Any, Normalizing] = {}  # without norms


@dataclass(frozen=True, eq=False)
class NormWeights:
    """A norm with its weights on the device."""

    part: Norm
    weight: Tensor | None
    bias: Tensor | None
    forms: dict[Any, Normalizing] = field(default_factory=dict, repr=False)  # by what else a launch needs

    @property
    def gain(self) -> int:
        """What multiplies and is added: 0 nothing, 1 weights, 2 weights and biases."""
        return 0 if self.weight is None else 1 if self.bias is None else 2


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n.

    >>> power_of_two(80)
    128
    """
    return 1 << max(0, n - 1).bit_length()


def warps(width: int) -> int:
    """How many warps sum a row of that width."""
    return 1 if width <= 256 else 4 if width <= 2048 else 8


def norm(x: Tensor, weights: NormWeights | None, dtype: torch.dtype) -> Tensor:
    """x normalised along its last axis.

    With weights of several heads, x is [n, heads, size], and each head has its own.
    """
    if weights is None:
        return x.to(dtype)
    x = x.contiguous()
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if not uses_kernels(x):
        out.copy_(_normalized(x.float(), weights))
        return out
    width = x.shape[-1]
    _launch(x.view(-1, width), None, out.view(-1, width), 1.0, None, weights, keep=False, prefetch=None)
    return out


def add_norm(
    x: Tensor,
    y: Tensor | None,
    scale: float,
    post: NormWeights | None,
    weights: NormWeights | None,
    dtype: torch.dtype,
    *,
    keep: bool = False,
    prefetch: Prefetch | None = None,
) -> Tensor | None:
    """x += scale × y, y normalised by `post` first, in place; returns x normalised by `weights`, if any.

    With `keep` x itself becomes the normalised sum. `prefetch`: weights that are read next.
    """
    out = None if weights is None else torch.empty(x.shape, dtype=dtype, device=x.device)
    if uses_kernels(x):
        _launch(x, y, out, scale, post, weights, keep, prefetch)
        return out
    if y is not None:
        y = y.float() if post is None else _normalized(y.float(), post)
        x += y * scale
    if weights is not None and out is not None:
        normed = _normalized(x, weights)
        out.copy_(normed)
        if keep:
            x.copy_(normed)
    return out


def _normalized(x: Tensor, weights: NormWeights) -> Tensor:
    if weights.part.kind == "layer":
        x = x - x.mean(dim=-1, keepdim=True)
    x = x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + weights.part.eps)
    if weights.weight is not None:
        x = x * weights.weight
    return x if weights.bias is None else x + weights.bias


def _form(
    x: Tensor, adds: bool, post: NormWeights | None, weights: NormWeights | None, keep: bool, prefetches: bool
) -> Normalizing:
    """The kernel for rows of a width, the weights that it takes, their epsilons and groups."""
    holder, key = weights or post, (x.shape[1], adds, post, keep, prefetches)
    forms = _FORMS if holder is None else holder.forms
    found = forms.get(key)
    if found is None:
        found = forms[key] = _new_form(x, adds, post, weights, keep, prefetches)
    return found


def _new_form(
    x: Tensor, adds: bool, post: NormWeights | None, weights: NormWeights | None, keep: bool, prefetches: bool
) -> Normalizing:
    from stretto.backends.torch.kernels import rowwise as kernels
    from stretto.backends.torch.kernels.early import early_options

    width = x.shape[1]
    given, after = weights or post, post or weights
    groups = 1 if weights is None or weights.weight is None else weights.weight.numel() // width
    form = make_form(
        kernels.add_norm,
        WIDTH=width, BLOCK=power_of_two(width), ADD=adds,
        POST=post is not None, POST_LAYER=post is not None and post.part.kind == "layer",
        POST_GAIN=post.gain if post else 0, NORM=weights is not None,
        LAYER=weights is not None and weights.part.kind == "layer", GAIN=weights.gain if weights else 0,
        KEEP=keep, PREFETCHED=BLOCK if prefetches else 0, num_warps=warps(width), **early_options(x.device),
    )  # fmt: skip
    tensors = tuple(
        tensor
        for each in (post, weights)
        for tensor in ((None, None) if each is None else (each.weight, each.bias))
    )
    return form, tensors, (after.part.eps if after else 0.0, given.part.eps if given else 0.0, groups)


def _launch(
    x: Tensor,
    y: Tensor | None,
    out: Tensor | None,
    scale: float,
    post: NormWeights | None,
    weights: NormWeights | None,
    keep: bool,
    prefetch: Prefetch | None,
) -> None:
    n, width = x.shape
    form, tensors, numbers = _form(x, y is not None, post, weights, keep, prefetch is not None)
    form.launch(
        (n, 1 + (prefetch.grid(n) if prefetch else 0)),
        x,
        x if y is None else y,
        x if out is None else out,
        *[x if each is None else each for each in tensors],  # x is never read there
        scale,
        *numbers,
        width if y is None else y.stride(0),
        *prefetch_arguments(prefetch, x),
    )


def cap(x: Tensor, most: float) -> Tensor:
    """`most` × tanh(x / most), or x itself where there is no cap."""
    return most * torch.tanh(x / most) if most else x
