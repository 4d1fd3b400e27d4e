"""GLM-4: adjacent pairs in a part of each head, norms on both sides, gate and up in one matrix."""

from __future__ import annotations

from stretto.models.common import Keys, attention, decoder, head_size, refuse_experts
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, ModelSpec, sandwich
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a glm4 file."""
    keys = Keys(file, "glm4")
    refuse_experts(keys)
    # The rows of a model that sees images are stored for the other pairing.
    pairs = "halves" if "glm4.rope.dimension_sections" in file.metadata else "adjacent"
    fused = keys.has("blk.0.attn_qkv.weight")
    mixer = attention(
        keys,
        read_rope(file, "glm4", head_size(file, "glm4"), pairs),
        bias=keys.has("blk.0.attn_qkv.bias" if fused else "blk.0.attn_q.bias"),
        fused=fused,
    )
    layer = sandwich(mixer, Dense(keys.size("feed_forward_length"), fused=True), keys.eps)
    return decoder(keys, (layer,) * keys.n_layer)
