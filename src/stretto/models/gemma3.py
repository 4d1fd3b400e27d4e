"""Gemma 3: five windowed layers to each global one, norms on both sides, scaled embeddings."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec, sandwich

PERIOD = 6  # every sixth layer is global, unless the file says otherwise
LAYERS_27B = 62  # the one size that scales attention by the embedding's share of a head


def read(keys: Keys) -> ModelSpec:
    """The spec of a gemma3 file."""
    return read_layers(keys, keys.size("attention.sliding_window"))


def read_layers(keys: Keys, window: int, causal: bool = True) -> ModelSpec:
    """The spec of a file with layers of this kind, and that window."""
    common.refuse_experts(keys)
    eps, ffn = keys.eps, common.dense(keys, activation="gelu")
    wide = common.attention(keys, "halves", causal=causal, **common.qk_norms(eps))
    if keys.n_layer == LAYERS_27B:
        wide = replace(wide, scale=(keys.n_embd / wide.n_head) ** -0.5)
    near = replace(wide, rope=common.read_local_rope(keys), window=window)
    period = keys.size("attention.sliding_window_pattern", PERIOD)
    mixers = (wide if i % period == period - 1 else near for i in range(keys.n_layer))
    layers = (sandwich(mixer, ffn, eps) for mixer in mixers)
    return common.decoder(keys, layers, embedding_scale=keys.n_embd**0.5)
