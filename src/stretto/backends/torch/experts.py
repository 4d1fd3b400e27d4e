"""Experts on the device: the matrices of all of them in one stack, and the products of chosen ones.

assignment = assign(chosen, n_expert)                        # int32[n, used] → who multiplies what
inner = expert_product(x, gate_up, assignment, activation="silu")          # [n × used, n_ff]
y = expert_product(inner, down, assignment)                                # [n × used, n_embd]
out = mixture(y, weights)                                                  # [n, n_embd]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from stretto.backends.torch import activations
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.routing import route
from stretto.backends.torch.stack import Stack
from stretto.errors import InvalidRequest

__all__ = ["Assignment", "Stack", "assign", "expert_product", "mixture", "route"]


@dataclass(frozen=True)
class Assignment:
    """The experts of each row: chosen int32[n, used]. Pair row × used + i is a row with its choice i."""

    chosen: Tensor
    n_expert: int
    _blocks: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def used(self) -> int:
        """Experts of each row."""
        return int(self.chosen.shape[1])

    @cached_property
    def order(self) -> tuple[Tensor, Tensor]:
        """Pairs sorted by expert int64[pairs], and where each expert's begin int64[n_expert + 1]."""
        experts, order = torch.sort(self.chosen.flatten().long(), stable=True)
        bounds = torch.arange(self.n_expert + 1, device=order.device)
        return order, torch.searchsorted(experts, bounds)

    def blocks(self, size: int) -> tuple[Tensor, Tensor]:
        """Blocks of at most `size` pairs of one expert: experts int32[blocks], pairs int32[blocks, size].

        The number of blocks is the most there can be; blocks and places without a pair have −1.
        """
        if size not in self._blocks:
            pairs = self.chosen.numel()
            most = min(pairs, -(-pairs // size) + self.n_expert)
            self._blocks[size] = self._divide(size, most)
        return self._blocks[size]

    def _divide(self, size: int, most: int) -> tuple[Tensor, Tensor]:
        if uses_kernels(self.chosen):
            from stretto.backends.torch.kernels import choose

            return choose.blocks(self.chosen, self.n_expert, size, most)
        return self.plain_blocks(size, most)

    def plain_blocks(self, size: int, most: int) -> tuple[Tensor, Tensor]:
        """`blocks` in plain torch."""
        pairs = self.chosen.numel()
        order, starts = self.order
        ends = torch.cumsum((starts[1:] - starts[:-1] + size - 1) // size, 0)  # of integers: exact
        block = torch.arange(most, device=order.device)
        expert = torch.searchsorted(ends, block, right=True).clamp(max=self.n_expert - 1)
        begun = torch.where(expert > 0, ends[expert - 1], 0)
        at = starts[expert] + (block - begun) * size
        places = at[:, None] + torch.arange(size, device=order.device)
        inside = (places < starts[expert + 1][:, None]) & (block < ends[-1])[:, None]
        found = torch.where(inside, order[places.clamp(max=pairs - 1)], -1)
        return torch.where(inside[:, 0], expert, -1).int(), found.int()


def assign(chosen: Tensor, n_expert: int) -> Assignment:
    """Who multiplies what, from the experts of each row int32[n, used]."""
    return Assignment(chosen, n_expert)


def expert_product(
    x: Tensor,
    stack: Stack,
    assignment: Assignment,
    *,
    bias: Tensor | None = None,
    activation: str = "",
    clamp: tuple[float, float] | None = None,
    out_dtype: Any = None,
) -> Tensor:
    """Each row times its experts' matrices: [n × used, rows], or half as many of interleaved ones.

    x is [n, columns], or [n × used, columns] with a row for each pair. `bias` is float32[n_expert, rows];
    clamp = (limit, alpha) makes the gate a clamped SwiGLU.
    """
    pairs, gated = assignment.chosen.numel(), stack.interleaved and bool(activation)
    if len(x) not in (len(assignment.chosen), pairs):
        raise InvalidRequest(f"x must have {len(assignment.chosen)} or {pairs} rows, not {len(x)}", param="x")
    width = stack.rows // 2 if gated else stack.rows
    out = torch.empty(pairs, width, dtype=out_dtype or x.dtype, device=x.device)
    if uses_kernels(x):
        from stretto.backends.torch.kernels import grouped

        run: Any = grouped.product
        run(x, stack, assignment, out, bias, activations.code(activation), clamp)
        return out
    each = 1 if len(x) == pairs else assignment.used
    experts = assignment.chosen.flatten().tolist()
    for e in sorted(set(experts)):
        at = [pair for pair, expert in enumerate(experts) if expert == e]
        y = x[[pair // each for pair in at]].float() @ stack.expert(e, x.dtype).T
        if bias is not None:
            y = y + bias[e]
        if gated:
            out[at] = activations.gate(activation, y[:, ::2], y[:, 1::2], clamp).to(out.dtype)
        else:
            out[at] = activations.activate(activation, y).to(out.dtype)
    return out


def mixture(y: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of the experts' outputs y[n × used, n_embd], in the order of choice: float32."""
    if uses_kernels(y):
        from stretto.backends.torch.kernels import grouped

        mix: Any = grouped.mixture
        return mix(y, weights)
    n, used = weights.shape
    y = y.reshape(n, used, -1).float()
    out = weights[:, :1] * y[:, 0]
    for i in range(1, used):
        out = out + weights[:, i : i + 1] * y[:, i]
    return out
