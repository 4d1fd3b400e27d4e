"""Embeddings for each layer: made once for a batch, used at the end of every layer."""

from __future__ import annotations

import numpy as np

from stretto.backends.base import Batch
from stretto.backends.oracle.layer import Floats, LayerWeights
from stretto.backends.oracle.maths import ACTIVATIONS
from stretto.models.per_layer import PerLayer


def embeddings(spec: PerLayer, w: LayerWeights, batch: Batch, x: Floats) -> Floats:
    """float32[n, n_layer, size], from the tokens and their embeddings x."""
    tokens = np.array(batch.tokens)
    tokens[list(batch.vectors)] = 0
    table = w["per_layer_token_embd.weight"][tokens].reshape(len(x), -1, spec.size)
    projected = w.matmul(x, "per_layer_model_proj").reshape(len(x), -1, spec.size)
    projected = w.norm(spec.norm, projected * np.float32(spec.projection_scale))
    return (projected + table * np.float32(spec.table_scale)) * np.float32(spec.scale)


def added(spec: PerLayer, w: LayerWeights, x: Floats, vectors: Floats) -> Floats:
    """What a layer adds to x, from its part [n, size] of the embeddings."""
    gate = ACTIVATIONS[spec.activation](w.matmul(x, "inp_gate"))
    return w.norm(spec.post_norm, w.matmul(gate * vectors, "proj"))
