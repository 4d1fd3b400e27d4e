"""Folders of Gemma 1 to 3, and of EmbeddingGemma."""

from __future__ import annotations

from stretto.weights.folders.conversion import Conversion
from stretto.weights.folders.decoder import (
    AROUND,
    ATTENTION,
    FEED_FORWARD,
    LLAMA,
    plain_decoder,
    window_pattern,
)
from stretto.weights.folders.pooling import MEAN
from stretto.weights.folders.rope import rope_fields

GEMMA3 = {**ATTENTION, **FEED_FORWARD, **AROUND}
# The one size that scales attention by the embedding's share of a head.
LAYERS_27B = {"gemma2": 46, "gemma3": 62, "gemma-embedding": 62}
LOCAL_BASE = 10_000.0


def gemma(conversion: Conversion) -> None:
    """Gemma: scaled embeddings; the file has norms with the one added."""
    plain_decoder(conversion, LLAMA, norm_offset=1.0)


def gemma2(conversion: Conversion) -> None:
    """Gemma 2: caps, a window in every other layer, norms on both sides."""
    config, keys = conversion.config, conversion.keys
    size = plain_decoder(conversion, GEMMA3, norm_offset=1.0)
    _check_scale(conversion, size)
    keys["attention.sliding_window"] = config.integer("sliding_window", least=1)
    window_pattern(conversion)
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
    size = plain_decoder(conversion, GEMMA3, norm_offset=1.0)
    _check_scale(conversion, size)
    keys["attention.sliding_window"] = config.integer("sliding_window", least=1)
    near = rope_fields(config, "sliding_attention")
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
