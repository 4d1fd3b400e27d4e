"""Feed-forwards: dense ones, and mixtures of experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.backends.reference.layer import (
    ACTIVATIONS,
    Floats,
    LayerWeights,
    Pass,
    gelu,
    sigmoid,
    softmax,
    xielu,
)
from stretto.models.feed_forward import Dense, Experts, Routing
from stretto.models.parts import LayerInput, LowRank, PerLayer, Streams
from stretto.models.sites import Kind
from stretto.models.spec import Layer


def dense(ffn: Dense, w: LayerWeights, x: Floats) -> Floats:
    """down(activation(gate x) × up x), or down(activation(up x))."""
    s = ffn.suffix

    def act(x: Floats) -> Floats:
        return xielu(x, *ffn.xielu) if ffn.xielu else ACTIVATIONS[ffn.activation](x)

    up = w.matmul(x, f"ffn_up{s}")
    if not ffn.gated:
        return w.matmul(w.norm(ffn.inner_norm, act(up)), f"ffn_down{s}")
    gate = w.matmul(x, f"ffn_gate{s}")
    if ffn.cutoff is not None:
        gate = (
            gate - gate.mean(axis=1, keepdims=True) - np.float32(ffn.cutoff) * gate.std(axis=1, keepdims=True)
        )
        gate = np.maximum(gate, 0)
    return w.matmul(w.norm(ffn.inner_norm, act(gate) * up), f"ffn_down{s}")


def experts(ffn: Experts, w: LayerWeights, i: int, x: Floats, before: Floats, run: Pass) -> Floats:
    """The chosen experts of each row, weighted, and the shared one; `before`: what the layer got."""
    read = before if ffn.routing.early else w.norm(ffn.routing.norm, x)
    scores = w.matmul(read, "ffn_gate_inp") * np.float32(ffn.routing.score_scale)
    chosen, weights = route(ffn.routing, scores, w.get("exp_probs_b.bias"))
    if ffn.output_scale:
        weights = weights * w["ffn_down_exps.scale"][chosen]
    run.tap(i, Kind.EXPERTS, chosen.astype(np.float32))
    weights = run.tap(i, Kind.EXPERT_WEIGHTS, weights)
    inputs, out = w.norm(ffn.norm, x), np.zeros_like(x)
    for row in range(len(x)):
        for e, weight in zip(chosen[row], weights[row], strict=True):
            if ffn.weighs_inputs:
                out[row] += _expert(ffn, w, int(e), weight * inputs[row])
            else:
                out[row] += weight * _expert(ffn, w, int(e), inputs[row])
    out = w.norm(ffn.post_norm, out)
    if ffn.shared is not None:
        shared = w.norm(ffn.shared_post_norm, dense(ffn.shared, w, w.norm(ffn.shared_norm, x)))
        if ffn.shared_gate:
            shared = shared * sigmoid(x @ w["ffn_gate_inp_shexp.weight"])[:, None]
        out = out + np.float32(ffn.shared_scale) * shared
    return out


def _expert(ffn: Experts, w: LayerWeights, e: int, x: Floats) -> Floats:
    """Expert e of one row."""

    def matmul(x: Floats, name: str) -> Floats:
        out: Floats = w.expert(name, e) @ x
        return out + w[f"{name}.bias"][e] if ffn.bias else out

    up = matmul(x, "ffn_up_exps")
    if not ffn.gated:
        return matmul(ACTIVATIONS[ffn.activation](up), "ffn_down_exps")
    gate = matmul(x, "ffn_gate_exps")
    if ffn.limit:
        gate = np.minimum(gate, np.float32(ffn.limit))
        up = np.clip(up, np.float32(-ffn.limit), np.float32(ffn.limit))
        inner = gate * sigmoid(np.float32(ffn.alpha) * gate) * (up + 1)
    else:
        inner = ACTIVATIONS[ffn.activation](gate) * up
    return matmul(inner, "ffn_down_exps")


def route(routing: Routing, scores: Floats, correction: Floats | None) -> tuple[NDArray[np.intp], Floats]:
    """The experts of each row and their weights, from the router's scores [n, n_expert]."""
    n, n_expert = scores.shape
    if routing.weights == "one by one":
        return _one_by_one(routing, scores)
    if routing.weights == "softmax":
        probabilities = softmax(scores)
    elif routing.weights == "sigmoid":
        probabilities = sigmoid(scores)
    else:
        probabilities = scores
    order = probabilities if correction is None else probabilities + correction
    if routing.n_group > 1:
        groups = order.reshape(n, routing.n_group, -1)
        best = np.sort(groups, axis=2)[..., -routing.group_best :].sum(axis=2)
        kept = np.argsort(-best, axis=1, kind="stable")[:, : routing.n_group_used]
        mask = np.zeros((n, routing.n_group), bool)
        np.put_along_axis(mask, kept, True, axis=1)
        order = np.where(np.repeat(mask, n_expert // routing.n_group, axis=1), order, -np.inf)
    chosen = np.argsort(-order, axis=1, kind="stable")[:, : routing.n_used]
    weights: Floats = np.take_along_axis(probabilities, chosen, axis=1)
    if routing.weights == "chosen":
        weights = softmax(weights)
    if routing.normalize:
        weights = weights / weights.sum(axis=1, keepdims=True)
    weights = weights * np.float32(routing.scale)
    return chosen, weights


def _one_by_one(routing: Routing, scores: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Each expert's share in a softmax of those that are left, and not much worse than it."""
    left, rows = scores.copy(), np.arange(len(scores))
    chosen = np.empty((len(scores), routing.n_used), np.intp)
    weights = np.empty(chosen.shape, np.float32)
    for k in range(routing.n_used):
        chosen[:, k] = best = left.argmax(axis=1)
        most = left[rows, best][:, None]
        worse = (most - scores) / np.maximum(np.abs(scores), most) > 2 * routing.jitter
        weights[:, k] = 1 / np.where(worse, 0, np.exp(left - most)).sum(axis=1)
        left[rows, best] = -np.inf
    return chosen, weights


# What stands beside mixer and feed-forward: inputs of each layer, low-rank residuals, several streams.

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
