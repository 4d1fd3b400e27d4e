"""What the encoders of BERT's kind have in common: post-norm layers, learned positions, token types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stretto.models.common import Keys, Pairs, attention, decoder
from stretto.models.feed_forward import FeedForward
from stretto.models.spec import Attention, Layer, ModelSpec, Norm


def layer_norm(keys: Keys, name: str, bias: bool = True) -> Norm:
    """A layer norm by its name."""
    return Norm(name, keys.layer_eps, "layer", bias=bias)


def two_way(keys: Keys, rope: Pairs | None, **pieces: Any) -> Attention:
    """Attention in both directions; whether q, k and v are one tensor, and their biases, are the file's."""
    fused = keys.has("blk.0.attn_qkv.weight")
    return attention(
        keys,
        rope,
        causal=False,
        fused=fused,
        bias=keys.has("blk.0.attn_qkv.bias" if fused else "blk.0.attn_q.bias"),
        output_bias=keys.has("blk.0.attn_output.bias"),
        q_norm=_whole_norm(keys, "attn_q_norm"),
        k_norm=_whole_norm(keys, "attn_k_norm"),
        **pieces,
    )


def _whole_norm(keys: Keys, name: str) -> Norm | None:
    """The layer norm of a whole row of queries or keys, which few models have."""
    if not keys.has(f"blk.0.{name}.weight"):
        return None
    bias = keys.has(f"blk.0.{name}.bias")
    return Norm(name, keys.layer_eps, "layer", bias=bias, over="all")


def post_norm_layer(keys: Keys, mixer: Attention, ffn: FeedForward) -> Layer:
    """A layer that normalises the sums, as BERT's do."""
    norms = layer_norm(keys, "attn_output_norm"), layer_norm(keys, "layer_output_norm")
    return Layer(mixer, ffn, None, None, sum_norm=norms[0], ffn_sum_norm=norms[1])


def encoder(keys: Keys, layers: Iterable[Layer], **pieces: Any) -> ModelSpec:
    """The spec of an encoder with normalised embeddings, and token types if the file has them."""
    keys.refuse("attn_logit_softcapping", "a cap on attention scores")
    types = "token_types.weight"
    fields: dict[str, Any] = {
        "output_norm": None,
        "embedding_norm": layer_norm(keys, "token_embd_norm"),
        "token_types": keys.tensor(types).shape[0] if keys.has(types) else 0,
        "tied": True,
    }
    return decoder(keys, layers, **(fields | pieces))


def uniform_encoder(keys: Keys, mixer: Attention, ffn: FeedForward, **pieces: Any) -> ModelSpec:
    """An encoder whose layers are all the same, and normalise the sums."""
    return encoder(keys, (post_norm_layer(keys, mixer, ffn),) * keys.n_layer, **pieces)


def learned_positions(keys: Keys) -> dict[str, int]:
    """The number of learned positions, and the context that they allow."""
    rows = keys.tensor("position_embd.weight").shape[0]
    return {"learned_positions": rows, "context_length": min(rows, keys.size("context_length"))}
