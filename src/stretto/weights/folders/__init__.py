"""Hugging Face folders in the form of a GGUF file: one converter for each `model_type` of a config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import ModelError, UnsupportedModel
from stretto.weights.folders import (
    eagle,
    encoders,
    experts,
    gemma,
    hybrids,
    latent,
    layer_norms,
    llama,
    mambas,
    rwkv,
)
from stretto.weights.folders.conversion import DEFAULTS, Conversion
from stretto.weights.folders.quantised import FIELD, check_packed, read_packing
from stretto.weights.folders.stored import Sources
from stretto.weights.json_file import Fields
from stretto.weights.safetensors import Shard

# Settings that configurations leave out, where the classes of transformers have them as defaults.
#
# The configuration of a language model inside that of a larger model holds only what differs from these.

_GEMMA = DEFAULTS["gemma"]
GEMMA3 = {**_GEMMA, **DEFAULTS["gemma3"]}
GEMMA3N = {**_GEMMA, **DEFAULTS["gemma3n"]}
GEMMA4 = {**_GEMMA, **DEFAULTS["gemma4"]}
QWEN35 = DEFAULTS["qwen35"]
WINDOW = {"sliding_window": 4096}  # of Mistral, and of Qwen with use_sliding_window


PREFIXES = (
    *("model.language_model.", "language_model.model.", "language_model.", "model.text_model.", "model."),
)
SILU = ("silu", "swish")
GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh")  # all of these files mean the last


@dataclass(frozen=True)
class Kind:
    """A kind of model: its architecture in a GGUF file, and the function that converts a folder."""

    arch: str
    convert: Callable[[Conversion], None]
    prefixes: tuple[str, ...] = PREFIXES  # of tensors' names, that depend on the class they were saved from
    activations: tuple[str, ...] = SILU  # of the feed-forward; empty where the converter checks it
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of settings that configurations leave out


BACKBONE = ("backbone.", "model.backbone.", "model.")
TRANSFORMER = ("transformer.", "model.")
EXACT_GELU = ("gelu",)

KINDS: dict[str, Kind] = {
    "apertus": Kind("apertus", llama.apertus, activations=("xielu",)),
    "arcee": Kind("arcee", llama.arcee, activations=("relu2",)),
    "baichuan": Kind("baichuan", llama.baichuan),
    "bailing_moe": Kind("bailingmoe2", experts.bailing),
    "bailing_moe_v2": Kind("bailingmoe2", experts.bailing),
    "bitnet": Kind("bitnet", llama.bitnet, activations=()),
    "bloom": Kind("bloom", layer_norms.bloom, TRANSFORMER, ()),
    "exaone": Kind("exaone", llama.exaone, ("transformer.",)),
    "falcon": Kind("falcon", layer_norms.falcon, TRANSFORMER, EXACT_GELU),
    "glm": Kind("chatglm", llama.glm),
    "gpt2": Kind("gpt2", layer_norms.gpt2, TRANSFORMER, GELU),
    "gpt_bigcode": Kind("starcoder", layer_norms.starcoder, TRANSFORMER, GELU),
    "gpt_neox": Kind("gptneox", layer_norms.gpt_neox, ("gpt_neox.",), EXACT_GELU),
    "internlm2": Kind("internlm2", llama.internlm2),
    "jais2": Kind("jais2", llama.jais2, activations=("relu2",)),
    "mpt": Kind("mpt", layer_norms.mpt, TRANSFORMER, ()),
    "nemotron": Kind("nemotron", layer_norms.nemotron, activations=("relu2",)),
    "olmo": Kind("olmo", layer_norms.olmo),
    "phi": Kind("phi2", layer_norms.phi, activations=GELU),
    "stablelm": Kind("stablelm", layer_norms.stablelm),
    "bert": Kind("bert", encoders.bert, encoders.PREFIXES, ()),
    "cohere": Kind("command-r", llama.cohere),
    "cohere2": Kind("cohere2", llama.cohere2),
    "cohere2_moe": Kind("cohere2moe", experts.cohere),
    "dbrx": Kind("dbrx", experts.dbrx, ("transformer.",)),
    "deepseek_v2": Kind("deepseek2", latent.deepseek),
    "deepseek_v3": Kind("deepseek2", latent.deepseek),
    "deepseek_v32": Kind("deepseek32", latent.deepseek32),
    "dots1": Kind("dots1", experts.dots),
    "ernie4_5": Kind("ernie4_5", llama.ernie),
    "ernie4_5_moe": Kind("ernie4_5-moe", experts.ernie_moe),
    "exaone4": Kind("exaone4", llama.exaone4),
    "exaone_moe": Kind("exaone-moe", experts.exaone),
    "falcon_mamba": Kind("mamba", mambas.mamba, BACKBONE),
    "falcon_h1": Kind("falcon-h1", mambas.falcon),
    "gemma": Kind("gemma", gemma.gemma, activations=GELU),
    "gemma2": Kind("gemma2", gemma.gemma2, activations=GELU),
    "gemma3": Kind("gemma3", gemma.gemma3, activations=GELU, defaults=GEMMA3),
    "gemma3_text": Kind("gemma3", gemma.gemma3, activations=GELU, defaults=GEMMA3),
    "gemma3n_text": Kind("gemma3n", gemma.gemma3n, activations=GELU, defaults=GEMMA3N),
    "gemma4_text": Kind("gemma4", gemma.gemma4, activations=GELU, defaults=GEMMA4),
    "glm4": Kind("glm4", llama.glm4),
    "glm4_moe": Kind("glm4moe", experts.glm4moe),
    "glm4_moe_lite": Kind("deepseek2", latent.deepseek),
    "glm_moe_dsa": Kind("glm-dsa", latent.glm5),
    "gpt_oss": Kind("gpt-oss", experts.gptoss),
    "granite": Kind("granite", llama.granite),
    "granitemoe": Kind("granitemoe", experts.granitemoe),
    "granitemoehybrid": Kind("granitehybrid", mambas.granite),
    "granitemoeshared": Kind("granitemoe", experts.granitemoe),
    "hunyuan_v1_dense": Kind("hunyuan-dense", llama.hunyuan),
    "hunyuan_v1_moe": Kind("hunyuan-moe", experts.hunyuan_moe),
    "hy_v3": Kind("hy_v3", experts.hunyuan3),
    "jamba": Kind("jamba", mambas.jamba),
    "jina_embeddings_v3": Kind("jina-bert-v3", encoders.rotary, encoders.PREFIXES, ()),
    "kimi_linear": Kind("kimi-linear", latent.kimi),
    "lfm2": Kind("lfm2", hybrids.lfm2),
    "lfm2_moe": Kind("lfm2moe", hybrids.lfm2),
    "llama": Kind("llama", llama.llama),
    "llama4_text": Kind("llama4", experts.llama4),
    "mamba": Kind("mamba", mambas.mamba, BACKBONE),
    "mamba2": Kind("mamba2", mambas.mamba2, BACKBONE),
    "mellum": Kind("mellum", experts.mellum),
    "minicpm": Kind("minicpm", llama.minicpm),
    "minicpm3": Kind("minicpm3", latent.minicpm3),
    "minimax_m2": Kind("minimax-m2", experts.minimax),
    "ministral3": Kind("mistral3", llama.ministral3),
    "mistral": Kind("llama", llama.mistral, defaults=WINDOW),
    "mixtral": Kind("llama", experts.mixtral),
    "modernbert": Kind("modern-bert", encoders.modern_bert, encoders.PREFIXES, ()),
    "nemotron_h": Kind("nemotron_h", mambas.nemotron, ("backbone.", "model."), ()),
    "nomic_bert": Kind("nomic-bert", encoders.rotary, encoders.PREFIXES, ()),
    "olmo2": Kind("olmo2", llama.olmo),
    "olmo3": Kind("olmo2", llama.olmo),
    "olmoe": Kind("olmoe", experts.olmoe),
    "phi3": Kind("phi3", llama.phi3),
    "phimoe": Kind("phimoe", experts.phimoe),
    "qwen2": Kind("qwen2", llama.qwen, defaults=WINDOW),
    "qwen2_vl": Kind("qwen2vl", llama.qwen2vl, defaults=WINDOW),
    "qwen2_vl_text": Kind("qwen2vl", llama.qwen2vl, defaults=WINDOW),
    "qwen2_5_vl": Kind("qwen2vl", llama.qwen2vl, defaults=WINDOW),
    "qwen2_5_vl_text": Kind("qwen2vl", llama.qwen2vl, defaults=WINDOW),
    "qwen2_moe": Kind("qwen2moe", experts.qwen2moe),
    "qwen3": Kind("qwen3", llama.qwen, defaults=WINDOW),
    "qwen3_5_moe_text": Kind("qwen35moe", hybrids.qwen35, defaults=QWEN35),
    "qwen3_5_text": Kind("qwen35", hybrids.qwen35, defaults=QWEN35),
    "qwen3_next": Kind("qwen3next", hybrids.qwen3next),
    "qwen3_vl_text": Kind("qwen3vl", llama.qwen3vl),
    "qwen3_moe": Kind("qwen3moe", experts.qwen3moe),
    "roberta": Kind("bert", encoders.roberta, encoders.PREFIXES, ()),
    "rwkv7": Kind("rwkv7", rwkv.rwkv7, activations=()),
    "seed_oss": Kind("seed_oss", llama.seed_oss),
    "smallthinker": Kind("smallthinker", experts.smallthinker, activations=("relu",)),
    "smollm3": Kind("smollm3", llama.smollm3),
    "starcoder2": Kind("starcoder2", llama.starcoder2, activations=GELU),
    "xlm-roberta": Kind("bert", encoders.roberta, encoders.PREFIXES, ()),
}


def convert(config: Fields, shards: list[Shard], folder: Path) -> Conversion:
    """The metadata and tensors of a folder; `UnsupportedModel` for a kind that has no converter."""
    if eagle.is_head(config):
        return eagle.convert_head(config, shards, folder)
    config = _text_config(config)
    name = config.text("model_type")
    if name not in KINDS:
        raise UnsupportedModel(
            f"folders of model_type {name!r} are not supported, only {', '.join(sorted(KINDS))}; a GGUF file "
            "of the model may be",
            path=folder,
            field="config.json model_type",
        )
    kind = KINDS[name]
    config = Fields({**kind.defaults, **dict(config)}, config.path, config.prefix)
    names = "hidden_activation", "hidden_act", "activation_function", "activation"
    activation = next((config[name] for name in names if name in config), "")
    if kind.activations and activation not in (*kind.activations, ""):
        raise config.error(
            "hidden_act", f"{activation!r} is not supported, only {', '.join(kind.activations)}"
        )
    packing = read_packing(config)
    sources = Sources(shards, kind.prefixes, packing)
    if packing is None:
        check_packed(config, sources.names())
    elif kind.arch == "llama":
        sources.drop_empty_biases()
    conversion = Conversion(kind.arch, config, sources, folder)
    try:
        kind.convert(conversion)
    except (ArithmeticError, ValueError) as error:  # of numbers that no model has
        raise ModelError(f"its settings make no sense: {error}", path=config.path) from None
    conversion.finish()
    return conversion


def _text_config(config: Fields) -> Fields:
    """The configuration of the language model, in that of a model that sees or hears as well."""
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return config
    outer = {name: config[name] for name in ("tie_word_embeddings", "model_type", FIELD) if name in config}
    vision = config.object("vision_config", {})
    if "deepstack_visual_indexes" in vision:
        outer["deepstack_visual_indexes"] = vision.list("deepstack_visual_indexes")
    return Fields({**outer, **inner}, config.path, "text_config.")
