"""Inputs of each layer, low-rank residuals and several streams (streams.py), with their weights."""

from __future__ import annotations

import torch

from stretto.backends.torch import streams
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.matrix import Matrix, product
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.rowwise import NormWeights, norm
from stretto.backends.torch.streams import Function
from stretto.backends.torch.weights import LayerWeights
from stretto.models.spec import ModelSpec
from stretto.models.streams import LayerInput, LowRank, PerLayer, Streams


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
        return streams.inputs(own, self.project(x), self.part.size, self.n_embd, self.norm)


class InputLayer:
    """What a layer's input adds to x."""

    def __init__(self, part: LayerInput, w: LayerWeights, n_embd: int) -> None:
        self.gate = _times(w.matrix({"inp_gate": part.size}, n_embd))
        self.project = _times(w.matrix({"proj": n_embd}, part.size))
        self.norm = _normed(w.norm(part.norm, n_embd))

    def __call__(self, x: Tensor, given: Tensor) -> Tensor:
        """float32[n, n_embd]."""
        return streams.from_input(x, given, self.gate, self.project, self.norm)


class LowRankLayer:
    """A layer's normalised input, with what its narrow matrices make of it."""

    def __init__(self, part: LowRank, w: LayerWeights, n_embd: int) -> None:
        self.left = _times(w.matrix({"laurel_l": part.rank}, n_embd))
        self.right = _times(w.matrix({"laurel_r": n_embd}, part.rank))
        self.norm = _normed(w.norm(part.norm, n_embd))

    def __call__(self, normed: Tensor) -> Tensor:
        """float32[n, n_embd]."""
        return streams.low_rank(normed, self.left, self.right, self.norm)


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
        return streams.predict(xs, streams.route(xs[0], self.norm, self.router), self.predicting)

    def correct(self, predicted: Tensor, first: Tensor) -> Tensor:
        """Each stream moved by what the layer changed in the first one."""
        routes = streams.route(first, self.norm, self.router)
        return streams.correct(predicted, first, routes, self.correcting)


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
        return streams.spread(x, self.project)

    def merge(self, xs: Tensor) -> Tensor:
        """float32[n, n_embd]."""
        return streams.merge(xs, self.projects)
