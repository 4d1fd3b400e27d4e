"""Folders of Gemma 1 to 3, and of EmbeddingGemma."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from stretto.weights.folders import decoder
from stretto.weights.folders.conversion import MODULES, STACK, Conversion
from stretto.weights.folders.pooling import MEAN
from stretto.weights.json_file import Fields

GEMMA3 = {**decoder.ATTENTION, **decoder.FEED_FORWARD, **decoder.AROUND}
# The one size that scales attention by the embedding's share of a head.
LAYERS_27B = {"gemma2": 46, "gemma3": 62, "gemma-embedding": 62}
LOCAL_BASE = 10_000.0


def gemma(conversion: Conversion) -> None:
    """Gemma: scaled embeddings; the file has norms with the one added."""
    decoder.plain_decoder(conversion, decoder.LLAMA, norm_offset=1.0)


def gemma2(conversion: Conversion) -> None:
    """Gemma 2: caps, a window in every other layer, norms on both sides."""
    config, keys = conversion.config, conversion.keys
    size = decoder.plain_decoder(conversion, GEMMA3, norm_offset=1.0)
    _check_scale(conversion, size)
    keys["attention.sliding_window"] = config.integer("sliding_window", least=1)
    decoder.window_pattern(conversion)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if name in config:
            keys[name] = config.number(name)


def gemma3(conversion: Conversion) -> None:
    """Gemma 3: windows in five of six layers, with a rope of their own; or in both directions."""
    config, keys = conversion.config, conversion.keys
    if config.get("use_bidirectional_attention") is True:
        conversion.arch = "gemma-embedding"
        keys |= {"attention.causal": False, "pooling_type": MEAN}
    conversion.refuse("attn_logit_softcapping", "a cap on attention scores")
    conversion.refuse("final_logit_softcapping", "a cap on logits")
    size = decoder.plain_decoder(conversion, GEMMA3, norm_offset=1.0)
    _check_scale(conversion, size)
    keys["attention.sliding_window"] = config.integer("sliding_window", least=1)
    near = decoder.rope_fields(config, "sliding_attention")
    local = config.number("rope_local_base_freq", LOCAL_BASE)
    if isinstance(config.object("rope_parameters", {}).get("sliding_attention"), dict):
        local = near.number("rope_theta", LOCAL_BASE)
        if near.text("rope_type") != "default":
            raise near.error("rope_type", "the rope of windowed layers cannot be scaled")
    keys["rope.freq_base_swa"] = local
    if (period := _period(conversion)) is not None:
        keys["attention.sliding_window_pattern"] = period


def _period(conversion: Conversion) -> int | None:
    """Every how many layers one has no window."""
    config = conversion.config
    kinds = config.list("layer_types", [])
    if not kinds:
        return config.integer("sliding_window_pattern", 6, least=1)
    wide = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    period = wide[0] + 1 if wide else len(kinds) + 1
    if len(kinds) != conversion.n_layer or wide != list(range(period - 1, len(kinds), period)):
        raise config.error("layer_types", "layers without a window must come at equal distances")
    return period


def _check_scale(conversion: Conversion, head_size: int) -> None:
    """Raise for a scale of attention that files have no key for."""
    config, keys = conversion.config, conversion.keys
    expected = float(head_size)
    if conversion.n_layer == LAYERS_27B[conversion.arch]:
        expected = keys["embedding_length"] / keys["attention.head_count"]
    if config.number("query_pre_attn_scalar", expected) != expected:
        raise config.error("query_pre_attn_scalar", f"must be {expected:g} in a model of this size")


# Folders of Gemma 3n and Gemma 4: embeddings for every layer, shared K and V, experts.

WHOLE = MODULES["gemma_whole"]
PER_LAYER = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}
GEMMA3N = {**decoder.ATTENTION, **decoder.FEED_FORWARD, **decoder.AROUND, **PER_LAYER, **MODULES["gemma3n"]}
GEMMA4 = {**decoder.ATTENTION, **decoder.FEED_FORWARD, **decoder.AROUND, **PER_LAYER, **MODULES["gemma4"]}
# Tensors that are no module's: what they are called, and what they become.
GEMMA4_BARE = MODULES["gemma4_bare"]
UNROTATED = 1e30  # a frequency divided by this is none


def gemma3n(conversion: Conversion) -> None:
    """Gemma 3n: four streams, low-rank residuals, sparse first layers."""
    config, keys = conversion.config, conversion.keys
    size = decoder.common_keys(conversion)
    decoder.rope_keys(conversion, size)
    widths = config.get("intermediate_size")
    widths = widths if isinstance(widths, list) else [widths]
    if not widths or len(set(map(str, widths))) != 1 or type(widths[0]) is not int:
        raise config.error("intermediate_size", "must be the same in all layers")
    streams = config.integer("altup_num_inputs", 4, least=2, most=64)
    near = decoder.rope_fields(config, "sliding_attention")
    shares = config.get("activation_sparsity_pattern") or [0.0] * conversion.n_layer
    if not isinstance(shares, list) or not all(isinstance(s, (int, float)) and 0 <= s < 1 for s in shares):
        raise config.error("activation_sparsity_pattern", "must be a share for each layer")
    cutoffs = [NormalDist().inv_cdf(s) if s > 0 else float("-inf") for s in shares]
    keys |= {
        "feed_forward_length": widths[0],
        "rope.freq_base_swa": config.number("rope_local_base_freq", near.number("rope_theta", 10_000.0)),
        "attention.sliding_window": config.integer("sliding_window", least=1),
        "attention.shared_kv_layers": config.integer("num_kv_shared_layers", 0),
        "final_logit_softcapping": config.number("final_logit_softcapping", 30.0),
        "embedding_length_per_layer_input": config.integer("hidden_size_per_layer_input", least=1),
        "altup.active_idx": config.integer("altup_active_idx", 0),
        "altup.num_inputs": streams,
        "activation_sparsity_scale": np.array(cutoffs, np.float32),
    }
    decoder.window_pattern(conversion)
    decoder.take_whole(conversion, WHOLE)
    conversion.take_layers(GEMMA3N)
    for name, target in (
        ("altup_projections", "altup_proj"),
        ("altup_unembed_projections", "altup_unembd_proj"),
    ):
        conversion.take(f"{target}.weight", *(f"{name}.{i}.weight" for i in range(streams - 1)), op=STACK)
    for i in range(conversion.n_layer):
        source = f"layers.{i}.altup.correct_output_scale"
        conversion.take(f"blk.{i}.altup_correct_scale.weight", source)
        _fill_shared(conversion, i, conversion.n_layer - keys["attention.shared_kv_layers"])


def _fill_shared(conversion: Conversion, layer: int, first_shared: int) -> None:
    """Give a layer that shares K and V the matrices that files have for it, which nothing uses."""
    if layer < first_shared:
        return
    for part in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"):
        target = f"blk.{layer}.{part}"
        if target not in conversion.tensors and f"blk.0.{part}" in conversion.tensors:
            source = f"layers.0.self_attn.{part[5:].replace('k.', 'k_proj.').replace('v.', 'v_proj.')}"
            conversion.take(target, source)


def gemma4(conversion: Conversion) -> None:
    """Gemma 4: other heads in global layers, a rope on a part of them."""
    config, keys = conversion.config, conversion.keys
    local = decoder.common_keys(conversion)
    pattern = decoder.window_pattern(conversion)
    far = _global_fields(conversion, pattern)
    wide = far.integer("head_dim", config.integer("global_head_dim", local, least=2), least=2)
    far_rope, near_rope = decoder.rope_fields(config), decoder.rope_fields(config, "sliding_attention")
    if far_rope.text("rope_type") not in ("proportional", "default"):
        raise far_rope.error("rope_type", "only a proportional rope is supported")
    rotated = int(wide * far_rope.number("partial_rotary_factor", 1.0) / 2)
    conversion.constant("rope_freqs.weight", [1.0] * rotated + [UNROTATED] * (wide // 2 - rotated))
    heads = config.integer("num_key_value_heads", least=1)
    few = config.integer("num_global_key_value_heads", heads, least=1)
    usual = few if config.get("attention_k_eq_v") is True else heads
    far_heads = far.integer("num_key_value_heads", usual, least=1)
    keys |= {
        "attention.head_count_kv": [heads if windowed else far_heads for windowed in pattern],
        "attention.key_length": wide,
        "attention.value_length": wide,
        "attention.key_length_swa": local,
        "attention.value_length_swa": local,
        "attention.sliding_window": config.integer("sliding_window", least=1),
        "attention.shared_kv_layers": config.integer("num_kv_shared_layers", 0),
        "embedding_length_per_layer_input": config.integer("hidden_size_per_layer_input", 0),
        "rope.dimension_count": wide,
        "rope.dimension_count_swa": local,
        "rope.freq_base": far_rope.number("rope_theta", 1e6),
        "rope.freq_base_swa": near_rope.number("rope_theta", 10_000.0),
    }
    if "final_logit_softcapping" in config:
        keys["final_logit_softcapping"] = config.number("final_logit_softcapping")
    if config.get("use_double_wide_mlp") is True:
        shared, width = keys["attention.shared_kv_layers"], config.integer("intermediate_size", least=1)
        keys["feed_forward_length"] = [width] * (conversion.n_layer - shared) + [2 * width] * shared
    if config.get("enable_moe_block") is True:
        keys |= {
            "expert_count": config.integer("num_experts", least=1),
            "expert_used_count": config.integer("top_k_experts", least=1),
            "expert_feed_forward_length": config.integer("moe_intermediate_size", least=1),
        }
    decoder.take_whole(conversion, WHOLE)
    conversion.take_layers(GEMMA4)
    for i in range(conversion.n_layer):
        for source, target in GEMMA4_BARE.items():
            if conversion.has(f"layers.{i}.{source}"):
                conversion.take(f"blk.{i}.{target}", f"layers.{i}.{source}")


def _global_fields(conversion: Conversion, pattern: list[bool]) -> Fields:
    """The settings of layers without a window, where a configuration has them layer by layer.

    transformers pads the layers' numbers with zeros, so that they are sorted: "03" of ten layers and more.
    """
    layers = conversion.config.object("per_layer_config", {})
    numbers = {int(key): key for key in layers if key.isdecimal()}
    wide = [layers.object(numbers.get(i, str(i)), {}) for i, windowed in enumerate(pattern) if not windowed]
    if any(dict(layer) != dict(wide[0]) for layer in wide):
        raise conversion.config.error("per_layer_config", "layers without a window must be alike")
    return wide[0] if wide else layers
