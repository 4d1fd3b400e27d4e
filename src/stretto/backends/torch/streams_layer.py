"""Inputs of each layer, low-rank residuals and several streams (streams.py), with their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.matrix import Matrix, product
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.rowwise import NormWeights, norm
from stretto.backends.torch.weights import LayerWeights
from stretto.models.parts import LayerInput, LowRank, PerLayer, Streams
from stretto.models.spec import ModelSpec

# What stands beside mixer and feed-forward: inputs of each layer, low-rank residuals, several streams.
#
# Products and norms are given by the caller, as functions of float32 rows. What is summed here is summed in
# one order, whatever the number of rows.

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
    gated = torch.nn.functional.gelu(gate(x).float(), approximate="tanh")
    return norm(project(gated * given))


def low_rank(normed: Tensor, left: Function, right: Function, norm: Function) -> Tensor:
    """The layer's normalised input, with what its narrow matrices make of it."""
    return normed.float() + norm(right(left(normed))).float()


def spread(x: Tensor, project: Function) -> Tensor:
    """float32[n_stream, n, n_embd]: embeddings, and projections of them of the same length.

    `project` gives those of the other streams side by side.
    """
    others = project(x).float().view(len(x), -1, x.shape[1]).transpose(0, 1)
    return torch.cat((x[None], _of_length(others, x)))


def merge(xs: Tensor, projects: Sequence[Function]) -> Tensor:
    """float32[n, n_embd]: the mean of the streams, the others projected to the first one's length."""
    others = torch.stack([project(x).float() for project, x in zip(projects, xs[1:], strict=True)])
    total = xs[0]
    for other in _of_length(others, xs[0]):
        total = total + other
    return total / len(xs)


def route(x: Tensor, norm: Function, router: Function) -> Tensor:
    """float32[n, n_stream], between −1 and 1: what a stream's rows say about all."""
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
        from stretto.backends.torch.kernels import rowwise as kernels

        return kernels.mean_square(x)
    return x.square().mean(-1, keepdim=True)


def _times(matrix: Matrix) -> Function:
    return lambda x: product(x.to(matrix.dtype), matrix, out_dtype=torch.float32)


def _normed(weights: NormWeights | None) -> Function:
    return lambda x: norm(x, weights, torch.float32)


class PerLayerInputs:
    """The input of each layer, from tokens and their embeddings."""

    def __init__(self, part: PerLayer, w: LayerWeights, spec: ModelSpec) -> None:
        self.part, self.n_embd = part, spec.n_embd
        width = spec.n_layer * part.size
        self.embeddings = w.matrix({"per_layer_token_embd": spec.n_vocab}, width)
        self.project = _times(w.matrix({"per_layer_model_proj": width}, spec.n_embd))
        self.norm = _normed(w.norm(part.norm, part.size))

    def __call__(self, x: Tensor, run: Pass) -> Tensor:
        """float32[n_layer, n, size]."""
        tokens = run.tokens
        if run.vectors is not None:  # images have no embeddings of their own
            tokens = tokens.clone()
            tokens[run.vectors[0]] = 0
        own = self.embeddings.row(tokens)
        return inputs(own, self.project(x), self.part.size, self.n_embd, self.norm)


class InputLayer:
    """What a layer's input adds to x."""

    def __init__(self, part: LayerInput, w: LayerWeights, n_embd: int) -> None:
        self.gate = _times(w.matrix({"inp_gate": part.size}, n_embd))
        self.project = _times(w.matrix({"proj": n_embd}, part.size))
        self.norm = _normed(w.norm(part.norm, n_embd))

    def __call__(self, x: Tensor, given: Tensor) -> Tensor:
        """float32[n, n_embd]."""
        return from_input(x, given, self.gate, self.project, self.norm)


class LowRankLayer:
    """A layer's normalised input, with what its narrow matrices make of it."""

    def __init__(self, part: LowRank, w: LayerWeights, n_embd: int) -> None:
        self.left = _times(w.matrix({"laurel_l": part.rank}, n_embd))
        self.right = _times(w.matrix({"laurel_r": n_embd}, part.rank))
        self.norm = _normed(w.norm(part.norm, n_embd))

    def __call__(self, normed: Tensor) -> Tensor:
        """float32[n, n_embd]."""
        return low_rank(normed, self.left, self.right, self.norm)


class StreamsLayer:
    """The streams before and after a layer that computes the first one."""

    def __init__(self, part: Streams, w: LayerWeights, n_embd: int) -> None:
        self.router = _times(w.matrix({"altup_router": part.n}, n_embd))
        self.norm = _normed(w.norm(part.norm, n_embd))
        self.predicting = w.vector("altup_predict_coef.weight", part.n**3).view(part.n**2, part.n)
        self.correcting = w.vector("altup_correct_coef.weight", part.n**2).view(part.n, part.n)
        self.scale = w.vector("altup_correct_scale.weight", n_embd)

    def predict(self, xs: Tensor) -> Tensor:
        """Each stream plus a mixture of all."""
        return predict(xs, route(xs[0], self.norm, self.router), self.predicting)

    def correct(self, predicted: Tensor, first: Tensor) -> Tensor:
        """Each stream moved by what the layer changed in the first one."""
        routes = route(first, self.norm, self.router)
        return correct(predicted, first, routes, self.correcting)


class WholeStreams:
    """From embeddings to streams, and from streams to one."""

    def __init__(self, part: Streams, w: LayerWeights, n_embd: int) -> None:
        rows = (part.n - 1) * n_embd
        self.project = _times(w.matrix({"altup_proj": rows}, n_embd))
        self.projects = [
            _times(w.matrix({f"altup_unembd_proj.{i}": n_embd}, n_embd)) for i in range(part.n - 1)
        ]

    def spread(self, x: Tensor) -> Tensor:
        """float32[n_stream, n, n_embd]."""
        return spread(x, self.project)

    def merge(self, xs: Tensor) -> Tensor:
        """float32[n, n_embd]."""
        return merge(xs, self.projects)
