"""Feed-forwards: dense ones, and mixtures of experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.backends.oracle.layer import Floats, LayerWeights
from stretto.backends.oracle.maths import ACTIVATIONS, sigmoid, softmax
from stretto.models.feed_forward import Dense, Experts, Routing


def dense(ffn: Dense, w: LayerWeights, x: Floats) -> Floats:
    """down(activation(gate x) × up x), or down(activation(up x))."""
    act, s = ACTIVATIONS[ffn.activation], ffn.suffix
    up = w.matmul(x, f"ffn_up{s}")
    if not ffn.gated:
        return w.matmul(act(up), f"ffn_down{s}")
    gate = w.matmul(x, f"ffn_gate{s}")
    if ffn.cutoff is not None:
        gate = (
            gate - gate.mean(axis=1, keepdims=True) - np.float32(ffn.cutoff) * gate.std(axis=1, keepdims=True)
        )
        gate = np.maximum(gate, 0)
    return w.matmul(act(gate) * up, f"ffn_down{s}")


def experts(ffn: Experts, w: LayerWeights, x: Floats) -> Floats:
    """The chosen experts of each row, weighted, and the shared one."""
    scores = w.matmul(w.norm(ffn.routing.norm, x), "ffn_gate_inp") * np.float32(ffn.routing.score_scale)
    chosen, weights = route(ffn.routing, scores, w.get("exp_probs_b.bias"))
    if ffn.output_scale:
        weights = weights * w["ffn_down_exps.scale"][chosen]
    inputs, out = w.norm(ffn.norm, x), np.zeros_like(x)
    for row in range(len(x)):
        for e, weight in zip(chosen[row], weights[row], strict=True):
            out[row] += weight * _expert(ffn, w, int(e), inputs[row])
    out = w.norm(ffn.post_norm, out)
    if ffn.shared is not None:
        shared = w.norm(ffn.shared_post_norm, dense(ffn.shared, w, w.norm(ffn.shared_norm, x)))
        if ffn.shared_gate:
            shared = shared * sigmoid(x @ w["ffn_gate_inp_shexp.weight"])[:, None]
        out = out + shared
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
