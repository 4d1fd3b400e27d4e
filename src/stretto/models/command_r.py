"""Command R and R+: attention and feed-forward read one norm and are added together; scaled logits."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.models.common import Keys, attention, decoder, head_size, refuse_experts
from stretto.models.rope import read_rope
from stretto.models.spec import Attention, Dense, Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a command-r file."""
    keys = Keys(file, "command-r")
    rope = read_rope(file, "command-r", head_size(file, "command-r"), "adjacent")
    norms = {}
    if keys.has("blk.0.attn_q_norm.weight"):  # R+; each head has weights of its own
        norms = {f"{n}_norm": Norm(f"attn_{n}_norm", keys.layer_eps, "layer", over="heads") for n in "qk"}
    mixer = attention(keys, rope, **norms)
    return parallel_decoder(keys, [mixer] * keys.n_layer)


def parallel_decoder(keys: Keys, mixers: Iterable[Attention]) -> ModelSpec:
    """A model of Cohere's layers with these mixers."""
    refuse_experts(keys)
    ffn, eps = Dense(keys.size("feed_forward_length")), keys.layer_eps
    norm = Norm("attn_norm", eps, "layer")
    return decoder(
        keys,
        (Layer(mixer, ffn, norm, None, parallel=True) for mixer in mixers),
        output_norm=Norm("output_norm", eps, "layer"),
        logit_scale=keys.number("logit_scale"),
    )
