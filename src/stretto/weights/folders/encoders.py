"""Folders of encoders: BERT and RoBERTa, Nomic's and Jina's BERT, ModernBERT."""

from __future__ import annotations

from stretto.errors import ModelError
from stretto.weights.folders.conversion import MODULES, Conversion, rows
from stretto.weights.folders.decoder import common_keys, rope_fields, rope_keys
from stretto.weights.folders.pooling import CLS, MEAN
from stretto.weights.json_file import Fields

EMBEDDINGS = MODULES["embeddings"]
BERT = MODULES["bert"]
ROTARY = MODULES["rotary"]
# Nomic's own names of settings, which are GPT-2's.
NOMIC = MODULES["nomic"]
MODERN = MODULES["modern"]
PREFIXES = ("bert.", "roberta.", "model.", "nomic_bert.", "jina_embeddings_v3.", "xlm_roberta.")


def bert(conversion: Conversion) -> None:
    """BERT: learned positions, exact GELU, a class head behind the pooler."""
    _check_activation(conversion)
    conversion.refuse("position_embedding_type", "relative positions", (None, "absolute"))
    _encoder_keys(conversion)
    _take_embeddings(conversion)
    conversion.take_module("position_embd", "embeddings.position_embeddings")
    conversion.take_layers(BERT, layer="encoder.layer.{}.")
    class_head(conversion, "pooler.dense", "classifier")


def roberta(conversion: Conversion) -> None:
    """RoBERTa and XLM-R: positions begin after that of padding, and the class head has its own layer."""
    _check_activation(conversion)
    conversion.refuse("position_embedding_type", "relative positions", (None, "absolute"))
    _encoder_keys(conversion)
    _take_embeddings(conversion)
    source = "embeddings.position_embeddings.weight"
    first = conversion.config.integer("pad_token_id", 1) + 1
    count = conversion.shape(source)[0] if conversion.has(source) else 0
    conversion.take("position_embd.weight", source, op=rows(first, count))
    conversion.keys["context_length"] -= first
    conversion.take_layers(BERT, layer="encoder.layer.{}.")
    conversion.ignore(r"pooler\..*")
    class_head(conversion, "classifier.dense", "classifier.out_proj")


def rotary(conversion: Conversion) -> None:
    """Nomic's BERT and Jina's third: a rope; q, k and v in one matrix."""
    config = conversion.config
    known = {NOMIC.get(name, name): value for name, value in config.items()}
    conversion.config = Fields(known, config.path, config.prefix)
    conversion.refuse("prenorm", "norms before attention")
    conversion.refuse("rotary_emb_interleaved", "adjacent pairs")
    conversion.refuse("rotary_emb_fraction", "a rope on a part of a head", (None, 1.0))
    conversion.refuse("num_experts", "a mixture of experts")
    size = _encoder_keys(conversion)
    rope_keys(conversion, size)
    if conversion.arch == "nomic-bert" and "max_trained_positions" in config:
        conversion.keys |= {
            "rope.scaling.type": "dynamic",
            "rope.scaling.original_context_length": config.integer("max_trained_positions", least=1),
            # The published configuration has null; their model card asks for 2 where texts are longer.
            "rope.scaling.factor": config.number("rotary_scaling_factor", 2.0),
        }
    else:
        conversion.refuse("rotary_scaling_factor", "a scaled rope")
    _take_embeddings(conversion)
    conversion.take_layers(ROTARY, layer="encoder.layers.{}.")
    conversion.ignore(r"pooler\..*")


def modern_bert(conversion: Conversion) -> None:
    """ModernBERT: norms before, windows on both sides in two of three layers, two ropes."""
    config, keys = conversion.config, conversion.keys
    if config.text("hidden_activation", "gelu") != "gelu":
        raise config.error("hidden_activation", "only 'gelu' is supported")
    size = _encoder_keys(conversion)
    keys["attention.layer_norm_epsilon"] = config.number("norm_eps", 1e-5)
    keys.pop("attention.layer_norm_rms_epsilon", None)
    rope_keys(conversion, size)
    keys["rope.freq_base"] = config.number("global_rope_theta", keys["rope.freq_base"])
    near = rope_fields(config, "sliding_attention")
    keys["rope.freq_base_swa"] = config.number("local_rope_theta", near.number("rope_theta", 10_000.0))
    keys["attention.sliding_window"] = config.integer("local_attention", 128, least=2)
    every = config.integer("global_attn_every_n_layers", 3, least=1)
    kinds = config.list("layer_types", [])
    if kinds:
        wide = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
        every = wide[1] if len(wide) > 1 else len(kinds) + 1
        if wide != list(range(0, len(kinds), every)):
            raise config.error("layer_types", "layers without a window must come at equal distances")
    keys["attention.sliding_window_pattern"] = every
    keys["pooling_type"] = MEAN if config.text("classifier_pooling", "cls") == "mean" else CLS
    conversion.take_module("token_embd", "embeddings.tok_embeddings")
    conversion.take_module("token_embd_norm", "embeddings.norm")
    conversion.take_module("output_norm", "final_norm")
    conversion.take_layers(MODERN)
    if conversion.has("classifier.weight"):
        conversion.take_module("cls.norm", "head.norm")
    class_head(conversion, "head.dense", "classifier")
    conversion.ignore(r"(?:head|decoder)\..*")


def class_head(conversion: Conversion, hidden: str, output: str) -> None:
    """Take a class head, with the names of its labels; a pooler without one is not used."""
    conversion.ignore(r"(?:pooler|cls|lm_head|qa_outputs)\..*")
    if not conversion.has(f"{output}.weight"):
        return
    conversion.take_module("cls", hidden)
    conversion.take_module("cls.output", output)
    names = conversion.config.object("id2label", {})
    n = conversion.shape(f"{output}.weight")[0]
    labels = [names.get(str(i)) for i in range(n)] if n <= 1 << 20 else []
    if labels and all(isinstance(label, str) for label in labels):
        conversion.keys["classifier.output_labels"] = labels


def _encoder_keys(conversion: Conversion) -> int:
    size = common_keys(conversion)
    keys = conversion.keys
    for name in ("attention.head_count_kv", "attention.key_length", "attention.value_length"):
        del keys[name]
    keys |= {"attention.causal": False, "pooling_type": MEAN}
    return size


def _take_embeddings(conversion: Conversion) -> None:
    for source, target in EMBEDDINGS.items():
        conversion.take_module(target, source)
    if "token_embd.weight" not in conversion.tensors:
        raise ModelError(
            "the tensor is missing; is the folder complete?",
            path=conversion.folder,
            field="tensor 'embeddings.word_embeddings.weight'",
        )


def _check_activation(conversion: Conversion) -> None:
    if conversion.config.text("hidden_act", "gelu") != "gelu":
        raise conversion.config.error("hidden_act", "only 'gelu' is supported")
