"""Folders of models with norms in other places than Llama: OLMo, EXAONE, GLM-4, Cohere."""

from __future__ import annotations

from stretto.weights.folders.conversion import Conversion
from stretto.weights.folders.decoder import (
    AFTER,
    ATTENTION,
    FEED_FORWARD,
    LLAMA,
    plain_decoder,
    window_pattern,
)
from stretto.weights.folders.rope import rope_fields

AFTER_ONLY = {**ATTENTION, **FEED_FORWARD, **AFTER}


def olmo(conversion: Conversion) -> None:
    """OLMo 2 and 3: the third has windows in three of four layers, and scales the rope of the others only."""
    plain_decoder(conversion, AFTER_ONLY)
    if any(window_pattern(conversion)):
        config = conversion.config
        conversion.keys["attention.sliding_window"] = config.integer("sliding_window", least=1)
        near = rope_fields(config, "sliding_attention")
        nested = isinstance(config.object("rope_parameters", {}).get("sliding_attention"), dict)
        if nested and near.number("rope_theta", 0.0) != conversion.keys["rope.freq_base"]:
            raise near.error("rope_theta", "must be the same in layers with and without a window")


def exaone4(conversion: Conversion) -> None:
    """EXAONE 4: with windows, the global layers have no rope."""
    plain_decoder(conversion, AFTER_ONLY)
    if any(window_pattern(conversion)):
        conversion.keys["attention.sliding_window"] = conversion.config.integer("sliding_window", least=1)
    else:
        conversion.keys.pop("attention.sliding_window_pattern", None)


def glm4(conversion: Conversion) -> None:
    """GLM-4: gate and up in one matrix, a rope on half of each head."""
    names = {
        **LLAMA,
        "post_self_attn_layernorm": "post_attention_norm",
        "post_mlp_layernorm": "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up",
    }
    plain_decoder(conversion, {k: v for k, v in names.items() if k not in ("mlp.gate_proj", "mlp.up_proj")})


def cohere(conversion: Conversion) -> None:
    """Command R and R+: attention and feed-forward side by side, scaled logits."""
    conversion.refuse("attention_bias", "biases")
    plain_decoder(conversion)
    conversion.keys["logit_scale"] = conversion.config.number("logit_scale", 0.0625)


def cohere2(conversion: Conversion) -> None:
    """Command R7B and A: windows and a rope in three of four layers, the others have neither."""
    cohere(conversion)
    conversion.keys["attention.sliding_window"] = conversion.config.integer("sliding_window", least=1)
    window_pattern(conversion)
