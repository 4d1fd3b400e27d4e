"""Folders of EAGLE-3 heads, by the names of EAGLE and SpecForge or by those of speculators."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stretto.weights.folders.conversion import Conversion
from stretto.weights.folders.decoder import LLAMA, WHOLE, plain_decoder
from stretto.weights.folders.stored import Sources
from stretto.weights.json_file import Fields
from stretto.weights.safetensors import Shard

ARCH = "eagle3"
PREFIXES = "model.layers.0.", "model.midlayer.", "layers.0.", "midlayer.", "model."
LAYERS = "eagle_aux_hidden_state_layer_ids"
# What a model of 1 layer may have besides, and what nothing here computes.
REFUSED = {
    "norm_before_fc": "a norm before the matrix fc",
    "fc_norm": "a norm before the matrix fc",
    "norm_output": "states behind the last norm",
}


def is_head(config: Fields) -> bool:
    """Whether a folder is an EAGLE-3 head, and no model of its own."""
    names = config.get("architectures"), config.get("speculators_model_type")
    return "draft_vocab_size" in config and "eagle3" in str(names).lower()


def convert_head(config: Fields, shards: list[Shard], folder: Path) -> Conversion:
    """The metadata and tensors of a head, as llama.cpp's files have them."""
    inner = config.object("transformer_layer_config", {})
    own = {"architectures": None, "tie_word_embeddings": False}  # a head may take its model's matrices
    config = Fields({**dict(config), **dict(inner), **own}, config.path)
    if config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise config.error("hidden_act", f"{config['hidden_act']!r} is not supported, only silu")
    conversion = Conversion(ARCH, config, Sources(shards, PREFIXES), folder)
    for name, what in REFUSED.items():
        conversion.refuse(name, what)
    if config.flag("use_sliding_window", True):
        conversion.refuse("sliding_window", "a window")
    names = {**LLAMA, "hidden_norm": "attn_norm_2"}
    plain_decoder(conversion, names, pairs="adjacent", whole={**WHOLE, "fc": "fc"}, layer="")
    conversion.keys["norm_before_residual"] = config.flag("norm_before_residual", bool(inner))
    if config.get("target_hidden_size") is not None:
        conversion.keys["target_hidden_size"] = config.integer("target_hidden_size", least=1)
    nested = config.object("eagle_config", {}) if config.get("eagle_config") is not None else {}
    if config.get(LAYERS):  # those that begin with the states
        conversion.keys["extract_layers"] = config.list(LAYERS)
    elif nested.get(LAYERS):  # those that end with them
        conversion.keys["extract_layers"] = [
            number + 1 if type(number) is int else number for number in nested[LAYERS]
        ]
    if conversion.has("d2t"):  # the distance from the head's token to the model's
        distances = conversion.integers("d2t").reshape(-1)
        conversion.keep_integers("d2t", distances + np.arange(len(distances)))
    conversion.ignore(r"t2d|verifier_.*")
    conversion.finish()
    return conversion
