"""Command R and R+: attention and feed-forward read one norm and are added together; scaled logits."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.models.common import Keys, attention, decoder, dense, refuse_experts
from stretto.models.spec import Attention, Layer, ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a command-r file."""
    norms = {}
    if keys.has("blk.0.attn_q_norm.weight"):  # R+; each head has weights of its own
        norms = {f"{n}_norm": Norm(f"attn_{n}_norm", keys.layer_eps, "layer", over="heads") for n in "qk"}
    return parallel_decoder(keys, [attention(keys, "adjacent", **norms)] * keys.n_layer)


def parallel_decoder(keys: Keys, mixers: Iterable[Attention]) -> ModelSpec:
    """A model of Cohere's layers with these mixers."""
    refuse_experts(keys)
    ffn, eps = dense(keys), keys.layer_eps
    norm = Norm("attn_norm", eps, "layer")
    return decoder(
        keys,
        (Layer(mixer, ffn, norm, None, parallel=True) for mixer in mixers),
        output_norm=Norm("output_norm", eps, "layer"),
        logit_scale=keys.number("logit_scale"),
    )
