"""The choice of experts on the device: scores of the router → experts and weights, no host in between.

`route` is a kernel where kernels run. Elsewhere it is plain torch, with sums written out one by one, so that
a row's weights have one order of sums.
"""

from __future__ import annotations

import torch

from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.models.feed_forward import Routing


def route(routing: Routing, scores: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """The experts of each row int32[n, used], best first, and their weights float32[n, used]."""
    if uses_kernels(scores):
        from stretto.backends.torch.kernels import choose

        return choose.route(routing, scores, correction)
    return plain_route(routing, scores, correction)


def plain_route(routing: Routing, scores: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """`route` in plain torch."""
    scores = scores.float()
    if routing.weights == "softmax":
        probabilities = _softmax(scores)
    elif routing.weights == "sigmoid":
        probabilities = torch.sigmoid(scores)
    else:
        probabilities = scores
    order = probabilities if correction is None else probabilities + correction
    if routing.n_group > 1:
        order = _of_best_groups(routing, order)
    chosen = torch.sort(order, dim=1, descending=True, stable=True).indices[:, : routing.n_used]
    weights = probabilities.gather(1, chosen)
    if routing.weights == "chosen":
        weights = _softmax(weights)
    if routing.normalize:
        weights = weights / in_order(weights)
    return chosen.int(), weights * routing.scale


def in_order(x: Tensor) -> Tensor:
    """The sum along the last axis, which is kept: in halves, each pair added once, whatever the rows."""
    n = 1 << max(x.shape[-1] - 1, 0).bit_length()
    x = torch.nn.functional.pad(x, (0, n - x.shape[-1]))
    while n > 1:
        n //= 2
        x = x[..., :n] + x[..., n:]
    return x


def _softmax(x: Tensor) -> Tensor:
    x = torch.exp(x - x.amax(-1, keepdim=True))
    return x / in_order(x)


def _of_best_groups(routing: Routing, order: Tensor) -> Tensor:
    """Scores with −inf for all experts outside the best groups of each row."""
    groups = order.unflatten(1, (routing.n_group, -1))
    best = in_order(torch.topk(groups, routing.group_best, dim=2).values)[..., 0]
    kept = torch.sort(best, dim=1, descending=True, stable=True).indices[:, : routing.n_group_used]
    mask = torch.zeros_like(best, dtype=torch.bool).scatter(1, kept, True)
    return torch.where(mask[..., None], groups, -torch.inf).flatten(1)
