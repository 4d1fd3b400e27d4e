"""What stands beside mixer and feed-forward: inputs of each layer."""

from __future__ import annotations

import numpy as np

from stretto.backends.base import Batch
from stretto.backends.oracle.layer import Floats, LayerWeights
from stretto.backends.oracle.maths import gelu
from stretto.models.streams import LayerInput, PerLayer


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
