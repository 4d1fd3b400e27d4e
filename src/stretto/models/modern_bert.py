"""ModernBERT: norms before attention and feed-forward, a window on both sides in two of three layers."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys, both_sides, head_size, refuse_experts
from stretto.models.encoders import encoder, layer_norm, two_way
from stretto.models.rope import plain_frequencies, read_base, read_rope
from stretto.models.spec import Dense, Layer, ModelSpec, Rope
from stretto.weights.gguf import GGUF

PERIOD = 3  # the first of every three layers has no window
LOCAL_BASE = 10_000.0  # of the rope in windowed layers


def read(file: GGUF) -> ModelSpec:
    """The spec of a modern-bert file."""
    keys = Keys(file, "modern-bert")
    refuse_experts(keys)
    size = head_size(file, keys.arch)
    wide = two_way(keys, read_rope(file, keys.arch, size, "halves"))
    base = read_base(file, f"{keys.arch}.rope.freq_base_swa", LOCAL_BASE)
    rope = Rope(tuple(plain_frequencies(base, size).tolist()), "halves")
    near = replace(wide, rope=rope, window=both_sides(keys))
    period = keys.size("attention.sliding_window_pattern", PERIOD)
    ffn = Dense(keys.size("feed_forward_length"), "gelu_erf", fused=not keys.has("blk.0.ffn_gate.weight"))

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
