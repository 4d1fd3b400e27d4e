"""What the folders of decoders have in common: names of tensors and keys of metadata."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, pi

import numpy as np

from stretto.weights.folders.conversion import MODULES, Conversion, adjacent, plus
from stretto.weights.json_file import Fields
from stretto.weights.tensor import Op

# The rope of a configuration as keys of a GGUF file: base, size, and the scaling that a model comes with.

DEFAULT_THETA = 10_000.0


def rope_fields(config: Fields, layers: str = "full_attention") -> Fields:
    """The settings of a rope, wherever a configuration has them: with its scaling, or beside it.

    `layers`: of which layers, in models that have one rope for windowed layers and one for the others.
    """
    found = config.object("rope_parameters", {})
    if isinstance(found.get(layers), dict):
        found = found.object(layers)
    scaling = config.object("rope_scaling", {})
    values = {**dict(scaling), **dict(found)}
    for name in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        if name in config:
            values.setdefault(name, config[name])
    kind = values.get("rope_type", values.get("type", "default"))
    return Fields({**values, "rope_type": kind}, config.path, found.prefix or "rope_parameters.")


def rope_keys(conversion: Conversion, head_size: int, default_theta: float = DEFAULT_THETA) -> None:
    """Set the keys of the rope of a model's (global) layers."""
    rope, keys = rope_fields(conversion.config), conversion.keys
    keys["rope.freq_base"] = theta = rope.number("rope_theta", default_theta)
    size = int(head_size * rope.number("partial_rotary_factor", 1.0))
    keys["rope.dimension_count"] = size
    kind = rope.text("rope_type")
    if kind in ("default", "dynamic", "mrope"):  # dynamic scaling begins where our context ends
        return
    if kind == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope.number("factor")}
    elif kind == "llama3":
        conversion.constant("rope_freqs.weight", _llama3(rope, theta, size))
    elif kind == "yarn":
        _yarn(conversion, rope)
    elif kind in ("longrope", "su"):
        _longrope(conversion, rope)
    else:
        raise rope.error("rope_type", f"a rope of type {kind!r} is not supported")


def _llama3(rope: Fields, theta: float, size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """What Llama 3 divides each frequency by: those that rotate often in the original context are kept."""
    low, high, factor = (rope.number(f"{name}factor") for name in ("low_freq_", "high_freq_", ""))
    original = rope.number("original_max_position_embeddings")
    if not (0 < low < high and factor >= 1 and original > 0 and theta > 1):
        raise rope.error("factor", "makes no sense")
    turns = original * theta ** (-np.arange(0, size, 2) / size) / (2 * pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(1 / (kept + (1 - kept) / factor), np.float32)


def _yarn(conversion: Conversion, rope: Fields) -> None:
    keys, factor = conversion.keys, rope.number("factor")
    context = conversion.config.integer("max_position_embeddings", least=1)
    original = rope.integer("original_max_position_embeddings", context, least=1)
    keys |= {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }
    for name in ("beta_fast", "beta_slow"):
        if name in rope:
            keys[f"rope.scaling.yarn_{name}"] = rope.number(name)
    magnitude = yarn_magnitude(rope, factor)
    usual = 0.1 * log(max(factor, 1.0)) + 1.0
    if magnitude == 1.0:
        keys["rope.scaling.yarn_log_multiplier"] = 1.0
    elif abs(magnitude - usual) > 1e-9:
        keys["rope.scaling.yarn_attn_factor"] = magnitude


def yarn_magnitude(rope: Fields, factor: float) -> float:
    """How much longer YaRN makes queries and keys."""
    if "attention_factor" in rope:
        return rope.number("attention_factor")

    def scale(multiplier: float) -> float:
        return 0.1 * multiplier * log(factor) + 1.0 if factor > 1.0 else 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale(rope.number("mscale")) / scale(rope.number("mscale_all_dim"))
    return scale(1.0)


def _longrope(conversion: Conversion, rope: Fields) -> None:
    keys, config = conversion.keys, conversion.config
    context = config.integer("max_position_embeddings", least=1)
    original = rope.integer("original_max_position_embeddings", context, least=1)
    for name in ("long", "short"):
        factors = rope.list(f"{name}_factor")
        if len(factors) != keys["rope.dimension_count"] // 2 or not all(
            isinstance(one, (int, float)) and 0 < one < 1e6 for one in factors
        ):
            raise rope.error(
                f"{name}_factor", f"must be {keys['rope.dimension_count'] // 2} positive numbers"
            )
        conversion.constant(f"rope_factors_{name}.weight", factors)
    factor = rope.number("factor", context / original)
    usual = (1 + log(factor) / log(original)) ** 0.5 if factor > 1.0 and original > 1 else 1.0
    keys["rope.scaling.original_context_length"] = original
    keys["rope.scaling.attn_factor"] = rope.number("attention_factor", usual)


WHOLE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
ATTENTION = MODULES["attention"]
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
    for name in ("layer_norm_eps", "layer_norm_epsilon", "norm_eps"):
        if name in config:
            keys.setdefault("attention.layer_norm_epsilon", config.number(name))
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
    conversion: Conversion,
    names: Mapping[str, str] = WHOLE,
    ops: Mapping[str, Op] | None = None,
    weight_ops: Mapping[str, Op] | None = None,
) -> None:
    """Take the tensors outside of the layers; a tied output is the embedding."""
    for source, target in names.items():
        if target == "output" and conversion.config.get("tie_word_embeddings") is True:
            conversion.ignore(r"(?:.*\.)?lm_head\.weight")
            continue
        conversion.take_module(target, source, (ops or {}).get(target), (weight_ops or {}).get(target))


def plain_decoder(
    conversion: Conversion,
    names: Mapping[str, str] = LLAMA,
    *,
    pairs: str = "halves",
    norm_offset: float = 0.0,
    ops: Mapping[str, Op] | None = None,
    weight_ops: Mapping[str, Op] | None = None,
    whole: Mapping[str, str] = WHOLE,
    layer: str = "layers.{}.",
) -> int:
    """A decoder of plain layers, and the size of its heads.

    `pairs`: "adjacent" where llama.cpp's files have the rows of q and k reordered. `norm_offset` is what the
    model adds to the weights of its norms. `whole` and `layer`: names outside of layers, and what they begin
    with inside. `weight_ops` are not for biases.
    """
    size = common_keys(conversion)
    rope_keys(conversion, size)
    changes = dict(ops or {})
    if pairs == "adjacent":
        changes |= {"attn_q": adjacent(size), "attn_k": adjacent(size)}
    if norm_offset:
        offset = plus(norm_offset)
        # One is added to weights, and not to biases.
        weight_ops = {target: offset for target in (*names.values(), "output_norm") if "norm" in target}
    take_whole(conversion, whole, changes, weight_ops)
    conversion.take_layers(names, changes, layer, weight_ops=weight_ops)
    return size
