"""What stands beside mixer and feed-forward: inputs of each layer, low-rank residuals, several streams.

Products and norms are given by the caller, as functions of float32 rows. What is summed here is summed in
one order, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.backends.torch.device import Tensor, uses_kernels

Function = Callable[[Tensor], Tensor]  # of rows [n, width]
SMALLEST = 1e-5  # mean square that a stream is divided by


def inputs(own: Tensor, projected: Tensor, size: int, n_embd: int, norm: Function) -> Tensor:
    """float32[n_layer, n, size]: the input of each layer.

    `own` [n, n_layer × size] are the tokens' embeddings for each layer, `projected` those made of the common
    ones; `norm` normalises [n, n_layer, size] along its last axis.
    """
    n = len(own)
    own, projected = (a.float().view(n, -1, size) for a in (own, projected))
    both = (own * size**0.5 + norm(projected * n_embd**-0.5).float()) * 0.5**0.5
    return both.transpose(0, 1).contiguous()


def from_input(x: Tensor, given: Tensor, gate: Function, project: Function, norm: Function) -> Tensor:
    """What a layer's input `given` [n, size] adds to x."""
    import torch

    gated = torch.nn.functional.gelu(gate(x).float(), approximate="tanh")
    return norm(project(gated * given))


def low_rank(normed: Tensor, left: Function, right: Function, norm: Function) -> Tensor:
    """The layer's normalised input, with what its narrow matrices make of it."""
    return normed.float() + norm(right(left(normed))).float()


def spread(x: Tensor, project: Function) -> Tensor:
    """float32[n_stream, n, n_embd]: embeddings, and projections of them of the same length.

    `project` gives those of the other streams side by side.
    """
    import torch

    others = project(x).float().view(len(x), -1, x.shape[1]).transpose(0, 1)
    return torch.cat((x[None], _of_length(others, x)))


def merge(xs: Tensor, projects: Sequence[Function]) -> Tensor:
    """float32[n, n_embd]: the mean of the streams, the others projected to the first one's length."""
    import torch

    others = torch.stack([project(x).float() for project, x in zip(projects, xs[1:], strict=True)])
    total = xs[0]
    for other in _of_length(others, xs[0]):
        total = total + other
    return total / len(xs)


def route(x: Tensor, norm: Function, router: Function) -> Tensor:
    """float32[n, n_stream], between −1 and 1: what a stream's rows say about all."""
    import torch

    return torch.tanh(router(norm(x)).float() / x.shape[1])


def predict(xs: Tensor, routes: Tensor, coefficients: Tensor) -> Tensor:
    """Each stream plus a mixture of all; `coefficients` float32[n_stream², n_stream]."""
    n_stream, n, _ = xs.shape
    mixture = _weighed(routes, coefficients).view(n, n_stream, n_stream)
    predicted = xs
    for s in range(n_stream):
        predicted = predicted + mixture[:, :, s].t()[:, :, None] * xs[s]
    return predicted


def correct(predicted: Tensor, first: Tensor, routes: Tensor, coefficients: Tensor) -> Tensor:
    """Each stream moved by what the layer changed in the first one; `coefficients` [n_stream, n_stream]."""
    weights = 1 + _weighed(routes, coefficients)  # [n, n_stream]
    return predicted + (first - predicted[0]) * weights.t()[:, :, None]


def _weighed(routes: Tensor, coefficients: Tensor) -> Tensor:
    """routes [n, n_stream] times a small matrix [rows, n_stream]: [n, rows], summed stream by stream."""
    total = routes[:, :1] * coefficients[:, 0]
    for s in range(1, coefficients.shape[1]):
        total = total + routes[:, s, None] * coefficients[:, s]
    return total


def _of_length(others: Tensor, x: Tensor) -> Tensor:
    """Vectors of others [streams, n, n_embd], each as long as x's."""
    length = mean_square(x).sqrt()
    return others * length / mean_square(others).clamp(min=SMALLEST).sqrt()


def mean_square(x: Tensor) -> Tensor:
    """float32[..., 1]: of x [..., width]."""
    if uses_kernels(x):
        from stretto.backends.torch.kernels import streams as kernels

        return kernels.mean_square(x)
    return x.square().mean(-1, keepdim=True)
