"""What stands beside mixer and feed-forward: inputs of each layer, low-rank residuals, several streams."""

from __future__ import annotations

import numpy as np

from stretto.backends.base import Batch
from stretto.backends.oracle.layer import Floats, LayerWeights
from stretto.backends.oracle.maths import gelu
from stretto.models.spec import Layer
from stretto.models.streams import LayerInput, LowRank, PerLayer, Streams

SMALLEST = 1e-5  # mean square that a stream is divided by


def inputs(per_layer: PerLayer, whole: LayerWeights, batch: Batch, x: Floats) -> Floats:
    """float32[n_layer, n, size]: the input of each layer, from tokens and their embeddings x."""
    n, n_embd = x.shape
    tokens = np.array(batch.tokens)
    tokens[list(batch.vectors)] = 0  # images have no embeddings of their own
    own = whole["per_layer_token_embd.weight"][tokens].reshape(n, -1, per_layer.size)
    projected = whole.matmul(x, "per_layer_model_proj").reshape(own.shape) * np.float32(n_embd**-0.5)
    projected = whole.norm(per_layer.norm, projected)
    both = (own * np.float32(per_layer.size**0.5) + projected) * np.float32(0.5**0.5)
    return np.ascontiguousarray(both.swapaxes(0, 1))


def from_input(part: LayerInput, w: LayerWeights, x: Floats, given: Floats) -> Floats:
    """What a layer's input adds to x."""
    return w.norm(part.norm, w.matmul(gelu(w.matmul(x, "inp_gate")) * given, "proj"))


def low_rank(part: LowRank, w: LayerWeights, normed: Floats) -> Floats:
    """The layer's normalised input, with what its narrow matrices make of it."""
    return normed + w.norm(part.norm, w.matmul(w.matmul(normed, "laurel_l"), "laurel_r"))


def spread(whole: LayerWeights, x: Floats) -> Floats:
    """float32[n_stream, n, n_embd]: embeddings, and projections of them of the same length."""
    others = np.einsum("nd,sed->sne", x, whole["altup_proj.weight"])
    return np.concatenate((x[None], _of_length(others, x)))


def merge(whole: LayerWeights, xs: Floats) -> Floats:
    """float32[n, n_embd]: the mean of the streams, the others projected to the first one's length."""
    others = np.einsum("snd,sed->sne", xs[1:], whole["altup_unembd_proj.weight"])
    mean: Floats = np.concatenate((xs[:1], _of_length(others, xs[0]))).mean(axis=0)
    return mean


def _of_length(others: Floats, x: Floats) -> Floats:
    """Vectors of others, each as long as x's."""
    length = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True))
    lengths = np.sqrt(np.maximum(np.mean(np.square(others), axis=-1, keepdims=True), np.float32(SMALLEST)))
    scaled: Floats = others * length / lengths
    return scaled


def predict(layer: Layer, w: LayerWeights, xs: Floats) -> Floats:
    """Each stream plus a mixture of all."""
    n_stream, n, _ = xs.shape
    mixture = w.matmul(_route(layer.streams, w, xs[0]), "altup_predict_coef").reshape(n, n_stream, n_stream)
    predicted: Floats = xs + np.einsum("nts,snd->tnd", mixture, xs)
    return predicted


def correct(layer: Layer, w: LayerWeights, predicted: Floats, first: Floats) -> Floats:
    """Each stream moved by what the layer changed in the first one."""
    weights = 1 + w.matmul(_route(layer.streams, w, first), "altup_correct_coef")  # [n, n_stream]
    corrected: Floats = predicted + (first - predicted[0]) * weights.T[:, :, None]
    return corrected


def _route(streams: Streams | None, w: LayerWeights, x: Floats) -> Floats:
    """float32[n, n_stream], between −1 and 1."""
    normed = w.norm(streams.norm if streams else None, x) / np.float32(x.shape[1])
    return np.tanh(w.matmul(normed, "altup_router"))
