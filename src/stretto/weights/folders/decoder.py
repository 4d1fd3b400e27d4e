"""What the folders of decoders have in common: names of tensors and keys of metadata."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.weights.folders.conversion import Conversion
from stretto.weights.folders.ops import adjacent, plus
from stretto.weights.folders.rope import rope_keys
from stretto.weights.made_tensor import Op

WHOLE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
FEED_FORWARD = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
BEFORE = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
# Norms after attention and feed-forward only, or after as well as before.
AFTER = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
AROUND = {**AFTER, "input_layernorm": "attn_norm", "pre_feedforward_layernorm": "ffn_norm"}
LLAMA = {**ATTENTION, **FEED_FORWARD, **BEFORE}


def common_keys(conversion: Conversion, head_size: int | None = None) -> int:
    """Set the keys that every decoder has, and return the size of a head."""
    config, keys = conversion.config, conversion.keys
    heads = config.integer("num_attention_heads", least=1)
    hidden = config.integer("hidden_size", least=1)
    size = head_size or config.integer("head_dim", hidden // heads or 1, least=1)
    keys |= {
        "context_length": config.integer("max_position_embeddings", least=1),
        "embedding_length": hidden,
        "block_count": conversion.n_layer,
        "attention.head_count": heads,
        "attention.head_count_kv": config.integer("num_key_value_heads", heads, least=1),
        "attention.key_length": size,
        "attention.value_length": size,
    }
    if isinstance(config.get("intermediate_size"), int):
        keys["feed_forward_length"] = config.integer("intermediate_size", least=1)
    for name in ("rms_norm_eps", "norm_eps"):
        if name in config:
            keys["attention.layer_norm_rms_epsilon"] = config.number(name)
    if "layer_norm_eps" in config:
        keys["attention.layer_norm_epsilon"] = config.number("layer_norm_eps")
    return size


def window_pattern(conversion: Conversion) -> list[bool]:
    """Set the key that says which layers have a window, where the configuration says so."""
    kinds, period = conversion.config.list("layer_types", []), conversion.config.get("sliding_window_pattern")
    if not kinds:
        if isinstance(period, int):
            conversion.keys["attention.sliding_window_pattern"] = period
        return [] if period is None else [True]
    if len(kinds) != conversion.n_layer or not {"sliding_attention", "full_attention"} >= set(kinds):
        raise conversion.config.error("layer_types", "must say of each layer whether it has a window")
    pattern = [kind == "sliding_attention" for kind in kinds]
    conversion.keys["attention.sliding_window_pattern"] = pattern
    return pattern


def take_whole(
    conversion: Conversion, names: Mapping[str, str] = WHOLE, ops: Mapping[str, Op] | None = None
) -> None:
    """Take the tensors outside of the layers; a tied output is the embedding."""
    for source, target in names.items():
        if target == "output" and conversion.config.get("tie_word_embeddings") is True:
            conversion.ignore(r"(?:.*\.)?lm_head\.weight")
            continue
        conversion.take_module(target, source, (ops or {}).get(target))


def plain_decoder(
    conversion: Conversion,
    names: Mapping[str, str] = LLAMA,
    *,
    pairs: str = "halves",
    norm_offset: float = 0.0,
    ops: Mapping[str, Op] | None = None,
) -> int:
    """A decoder of plain layers, and the size of its heads.

    `pairs`: "adjacent" where llama.cpp's files have the rows of q and k reordered. `norm_offset` is what the
    model adds to the weights of its norms.
    """
    size = common_keys(conversion)
    rope_keys(conversion, size)
    changes = dict(ops or {})
    if pairs == "adjacent":
        changes |= {"attn_q": adjacent(size), "attn_k": adjacent(size)}
    if norm_offset:
        offset = plus(norm_offset)
        changes |= {target: offset for target in (*names.values(), "output_norm") if "norm" in target}
    take_whole(conversion, ops=changes)
    conversion.take_layers(names, changes)
    return size
