"""ModernBERT: norms before attention and feed-forward, a window on both sides in two of three layers."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys, both_sides, dense, read_local_rope, refuse_experts
from stretto.models.encoders import encoder, layer_norm, two_way
from stretto.models.spec import Layer, ModelSpec

PERIOD = 3  # the first of every three layers has no window


def read(keys: Keys) -> ModelSpec:
    """The spec of a modern-bert file."""
    refuse_experts(keys)
    wide = two_way(keys, "halves")
    near = replace(wide, rope=read_local_rope(keys), window=both_sides(keys))
    period = keys.size("attention.sliding_window_pattern", PERIOD)
    ffn = dense(keys, activation="gelu_erf", fused=not keys.has("blk.0.ffn_gate.weight"))

    def layer(i: int) -> Layer:
        # The first layer reads the embeddings, which are normalised already.
        before = layer_norm(keys, "attn_norm", bias=False) if keys.has(f"blk.{i}.attn_norm.weight") else None
        mixer = near if i % period else wide
        return Layer(mixer, ffn, before, layer_norm(keys, "ffn_norm", bias=False))

    return encoder(
        keys,
        map(layer, range(keys.n_layer)),
        embedding_norm=layer_norm(keys, "token_embd_norm", bias=False),
        output_norm=layer_norm(keys, "output_norm", bias=False),
    )
