"""Folders of gpt-oss: sinks, windows in every other layer, experts in MXFP4 or in plain numbers."""

from __future__ import annotations

from stretto.weights.folders.conversion import Conversion
from stretto.weights.folders.decoder import ATTENTION, plain_decoder
from stretto.weights.folders.experts import expert_keys
from stretto.weights.folders.ops import every_other, turned
from stretto.weights.folders.rope import rope_fields

NAMES = {
    **ATTENTION,
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "mlp.router": "ffn_gate_inp",
}


def gptoss(conversion: Conversion) -> None:
    """gpt-oss; transformers keeps experts the other way round, with rows of gate and up by turns."""
    config, keys = conversion.config, conversion.keys
    kinds = config.list("layer_types", [])
    if kinds and [kind == "full_attention" for kind in kinds] != [i % 2 == 1 for i in range(len(kinds))]:
        raise config.error("layer_types", "every other layer has a window, from the first on")
    if config.number("swiglu_limit", 7.0) != 7.0:
        raise config.error("swiglu_limit", "only 7 is supported")
    plain_decoder(conversion, NAMES)
    if rope_fields(config).get("truncate", False) is not False:
        raise config.error("rope_parameters.truncate", "only false is supported")
    keys["attention.sliding_window"] = config.integer("sliding_window", least=1)
    keys["expert_feed_forward_length"] = config.integer("intermediate_size", least=1)
    expert_keys(conversion)
    for i in range(conversion.n_layer):
        conversion.take(f"blk.{i}.attn_sinks.weight", f"layers.{i}.self_attn.sinks")
        _take_experts(conversion, f"blk.{i}", f"layers.{i}.mlp.experts")


def _take_experts(conversion: Conversion, block: str, place: str) -> None:
    for which, part in enumerate(("gate", "up")):
        bias, weight = f"{place}.gate_up_proj_bias", f"{place}.gate_up_proj"
        conversion.take(f"{block}.ffn_{part}_exps.bias", bias, op=every_other(which, 1))
        if conversion.has(f"{weight}_blocks"):
            conversion.take_mxfp4(f"{block}.ffn_{part}_exps.weight", weight, slice(which, None, 2))
        else:
            op = turned(1, 2).then(every_other(which, 1))
            conversion.take(f"{block}.ffn_{part}_exps.weight", weight, op=op)
    conversion.take(f"{block}.ffn_down_exps.bias", f"{place}.down_proj_bias")
    if conversion.has(f"{place}.down_proj_blocks"):
        conversion.take_mxfp4(f"{block}.ffn_down_exps.weight", f"{place}.down_proj", slice(None))
    else:
        conversion.take(f"{block}.ffn_down_exps.weight", f"{place}.down_proj", op=turned(1, 2))
