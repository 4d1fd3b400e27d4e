"""Folders of models with layer norms, most of them from before Llama."""

from __future__ import annotations

from stretto.weights.folders.conversion import MODULES, STACK, Conversion, rename, turned, unmixed
from stretto.weights.folders.decoder import BEFORE, LLAMA, plain_decoder
from stretto.weights.json_file import Fields

SIZES = MODULES["gpt_sizes"]  # names of settings, and those that Llama has for the same
GPT2_WHOLE = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output"}
UNGATED = {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
GPT2, GPT_NEOX, FALCON, BLOOM, PHI, MPT = (
    MODULES[name] for name in ("gpt2", "gpt_neox", "falcon_rw", "bloom", "phi", "mpt")
)


def rename_sizes(conversion: Conversion, inner: str = "n_inner", **defaults: object) -> None:
    """Give the settings their usual names; `defaults` of those that configurations leave out.

    `inner` is the name of the feed-forward's width: four times the embedding's where it is not given.
    """
    given = conversion.config
    conversion.config = Fields({**defaults, **dict(given), "intermediate_size": given.get(inner)}, given.path)
    rename(conversion, SIZES)
    config = conversion.config
    if config.get("intermediate_size") is None:
        width = 4 * config.integer("hidden_size", least=1)
        conversion.config = Fields({**dict(config), "intermediate_size": width}, config.path)


def take_unmixed(conversion: Conversion, source: str, layer: str = "h.{}.") -> None:
    """Take q, k and v of all layers as one matrix from one in which they stand head by head."""
    keys = conversion.keys
    names = "head_count", "head_count_kv", "key_length"
    heads, kv_heads, size = (keys[f"attention.{name}"] for name in names)
    op = unmixed("qkv", kv_heads, heads // kv_heads, size)
    for i in range(conversion.n_layer):
        conversion.take_module(f"blk.{i}.attn_qkv", layer.format(i) + source, op)


def gpt2(conversion: Conversion) -> None:
    """GPT-2: learned positions; matrices the other way round."""
    rename_sizes(conversion)
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        conversion.refuse(name, "this")
    matrices = {target: turned(0, 1) for source, target in GPT2.items() if "c_" in source}
    plain_decoder(conversion, GPT2, whole=GPT2_WHOLE, layer="h.{}.", weight_ops=matrices)
    conversion.ignore(r"h\.\d+\.attn\.(?:bias|masked_bias)")


def starcoder(conversion: Conversion) -> None:
    """StarCoder (GPT-BigCode): a GPT-2 with one K/V head."""
    rename_sizes(conversion)
    if not conversion.config.flag("multi_query", True):
        raise conversion.config.error("multi_query", "only true is supported")
    conversion.config = Fields({**dict(conversion.config), "num_key_value_heads": 1}, conversion.config.path)
    plain_decoder(conversion, GPT2, whole=GPT2_WHOLE, layer="h.{}.")
    conversion.ignore(r"h\.\d+\.attn\.(?:bias|masked_bias)")


def gpt_neox(conversion: Conversion) -> None:
    """GPT-NeoX and Pythia: q, k and v stand head by head; a rope on a part of each head."""
    config = conversion.config
    if "rotary_pct" in config:  # older configurations; their base has a name of its own, too
        older = {
            "partial_rotary_factor": config["rotary_pct"],
            "rope_theta": config.get("rotary_emb_base", 10_000),
        }
        conversion.config = Fields({**dict(config), **older}, config.path)
    whole = {
        "embed_in": "token_embd",
        "final_layer_norm": "output_norm",
        "embed_out": "output",
        "lm_head": "output",
    }
    plain_decoder(conversion, GPT_NEOX, whole=whole)
    conversion.keys["use_parallel_residual"] = config.flag("use_parallel_residual", True)
    take_unmixed(conversion, "attention.query_key_value", "layers.{}.")
    conversion.ignore(r"layers\.\d+\.attention\.(?:bias|masked_bias|rotary_emb\.inv_freq)")


def falcon(conversion: Conversion) -> None:
    """Falcon: one K/V head or, in the newer layout, several; one norm for both branches, or two."""
    rename_sizes(conversion, "ffn_hidden_size", max_position_embeddings=2048)
    config = conversion.config
    conversion.refuse("alibi", "scores that fall with the distance")
    if not config.flag("parallel_attn", True) and not config.flag("new_decoder_architecture", False):
        raise config.error("parallel_attn", "only true is supported")
    if not config.flag("multi_query", True) and not config.flag("new_decoder_architecture", False):
        raise config.error("multi_query", "only true is supported")
    newer = config.flag("new_decoder_architecture", False)
    kv_heads = config.integer("num_kv_heads", config.integer("num_attention_heads")) if newer else 1
    conversion.config = Fields({**dict(config), "num_key_value_heads": kv_heads}, config.path)
    whole = {"word_embeddings": "token_embd", "ln_f": "output_norm", "lm_head": "output"}
    plain_decoder(conversion, FALCON, whole=whole, layer="h.{}.")
    take_unmixed(conversion, "self_attention.query_key_value")


def bloom(conversion: Conversion) -> None:
    """BLOOM: ALiBi; q, k and v stand head by head."""
    rename_sizes(conversion, "", max_position_embeddings=2048)
    conversion.refuse("apply_residual_connection_post_layernorm", "residuals behind norms")
    whole = {
        "word_embeddings": "token_embd",
        "word_embeddings_layernorm": "token_embd_norm",
        "ln_f": "output_norm",
        "lm_head": "output",
    }
    plain_decoder(conversion, BLOOM, whole=whole, layer="h.{}.")
    take_unmixed(conversion, "self_attention.query_key_value")


def mpt(conversion: Conversion) -> None:
    """MPT: ALiBi, or learned positions which are refused; q, k and v are one matrix."""
    rename_sizes(conversion, "")
    config = conversion.config
    settings = config.object("attn_config", {})
    if not settings.flag("alibi", True):
        raise settings.error("alibi", "only true is supported")
    if settings.flag("qk_ln", False) or settings.get("softmax_scale") is not None:
        raise settings.error("qk_ln", "norms or scales of q and k are not supported")
    if config.get("expansion_ratio", 4) != 4:  # transformers has no other
        raise config.error("expansion_ratio", "only 4 is supported")
    whole = {"wte": "token_embd", "norm_f": "output_norm", "lm_head": "output"}
    plain_decoder(conversion, MPT, whole=whole, layer="blocks.{}.")
    keys = conversion.keys
    keys["attention.layer_norm_epsilon"] = config.number("layer_norm_eps", 1e-5)
    keys["attention.max_alibi_bias"] = float(settings.number("alibi_bias_max", 8.0))
    if settings.get("clip_qkv"):
        keys["attention.clamp_kqv"] = settings.number("clip_qkv")


def phi(conversion: Conversion) -> None:
    """Phi 1 and 2: branches side by side, a bias of logits, a rope on a part of each head."""
    conversion.refuse("qk_layernorm", "norms of q and k")
    whole = {"embed_tokens": "token_embd", "final_layernorm": "output_norm", "lm_head": "output"}
    plain_decoder(conversion, PHI, whole=whole)


def nemotron(conversion: Conversion) -> None:
    """Nemotron: weights of norms without the one that is added to them."""
    names = {name: target for name, target in LLAMA.items() if name != "mlp.gate_proj"}
    plain_decoder(conversion, names, norm_offset=1.0)


def stablelm(conversion: Conversion) -> None:
    """StableLM: norms of heads are a tensor each."""
    plain_decoder(conversion)
    for i in range(conversion.n_layer):
        for which, count in (("q", "head_count"), ("k", "head_count_kv")):
            place = f"layers.{i}.self_attn.{which}_layernorm.norms"
            if conversion.has(f"{place}.0.weight"):
                heads = range(conversion.keys[f"attention.{count}"])
                sources = (f"{place}.{head}.weight" for head in heads)
                conversion.take(f"blk.{i}.attn_{which}_norm.weight", *sources, op=STACK)


def olmo(conversion: Conversion) -> None:
    """OLMo 1: norms without weights."""
    names = {name: target for name, target in LLAMA.items() if name not in BEFORE}
    plain_decoder(conversion, names, pairs="adjacent")
    conversion.keys["attention.layer_norm_epsilon"] = 1e-5  # of its class, not of configurations
    if conversion.config.get("clip_qkv"):
        conversion.keys["attention.clamp_kqv"] = conversion.config.number("clip_qkv")
