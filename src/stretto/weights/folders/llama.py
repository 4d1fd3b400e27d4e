"""Folders of Llama and models that are a llama with one or two things changed."""

from __future__ import annotations

from stretto.weights.folders.conversion import (
    MODULES,
    TERNARY,
    Conversion,
    adjacent,
    of_unit_length,
    rename,
    rows,
    unmixed,
)
from stretto.weights.folders.decoder import (
    AFTER,
    ATTENTION,
    FEED_FORWARD,
    LLAMA,
    plain_decoder,
    rope_fields,
    window_pattern,
)
from stretto.weights.folders.quantised import FIELD


def llama(conversion: Conversion) -> None:
    """Llama and others of this architecture."""
    plain_decoder(conversion, pairs="adjacent")


def arcee(conversion: Conversion) -> None:
    """Arcee: a feed-forward without a gate."""
    plain_decoder(conversion, {k: v for k, v in LLAMA.items() if v != "ffn_gate"}, pairs="adjacent")


def jais2(conversion: Conversion) -> None:
    """Jais 2: layer norms, biases everywhere, a feed-forward without a gate."""
    plain_decoder(conversion, {k: v for k, v in LLAMA.items() if v != "ffn_gate"})


def glm(conversion: Conversion) -> None:
    """GLM-4 9B: gate and up in one matrix, a rope on half of each head, whose pairs are adjacent here too."""
    names = {k: v for k, v in LLAMA.items() if v not in ("ffn_gate", "ffn_up")}
    plain_decoder(conversion, {**names, "mlp.gate_up_proj": "ffn_up"})


def exaone(conversion: Conversion) -> None:
    """EXAONE 3 and 3.5, by the names of its publisher."""
    names = {"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps"}
    rename(conversion, names)
    whole = {"wte": "token_embd", "ln_f": "output_norm", "lm_head": "output"}
    plain_decoder(conversion, MODULES["exaone"], whole=whole, layer="h.{}.")


def internlm2(conversion: Conversion) -> None:
    """InternLM 2: q, k and v stand head by head in one matrix."""
    conversion.refuse("bias", "biases")
    whole = {"tok_embeddings": "token_embd", "norm": "output_norm", "output": "output"}
    size = plain_decoder(conversion, MODULES["internlm2"], whole=whole)
    heads, kv_heads = (conversion.keys[f"attention.{name}"] for name in ("head_count", "head_count_kv"))
    for which in "qkv":
        op = unmixed(which, kv_heads, heads // kv_heads, size)
        op = op if which == "v" else op.then(adjacent(size))
        for i in range(conversion.n_layer):
            conversion.take(f"blk.{i}.attn_{which}.weight", f"layers.{i}.attention.wqkv.weight", op=op)


def baichuan(conversion: Conversion) -> None:
    """Baichuan: q, k and v in one matrix; version 2 divides the rows of its last one by their length."""
    rename(conversion, {"model_max_length": "max_position_embeddings"})
    ops = {"output": of_unit_length(1)} if "z_loss_weight" in conversion.config else {}
    size = plain_decoder(conversion, ops=ops)
    width = conversion.keys["attention.head_count"] * size
    for part, which in enumerate("qkv"):
        op = rows(part * width, (part + 1) * width)
        op = op if which == "v" else op.then(adjacent(size))
        for i in range(conversion.n_layer):
            conversion.take(f"blk.{i}.attn_{which}.weight", f"layers.{i}.self_attn.W_pack.weight", op=op)


def apertus(conversion: Conversion) -> None:
    """Apertus: norms under names of their own; the numbers of xIELU are tensors."""
    names = {**ATTENTION, "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"}
    plain_decoder(conversion, names | {k: v for k, v in FEED_FORWARD.items() if v != "ffn_gate"})
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        sources = [f"layers.{i}.mlp.act_fn.{name}" for i in range(conversion.n_layer)]
        conversion.bare_keys[f"xielu.{name}"] = [conversion.number(source) for source in sources]


def bitnet(conversion: Conversion) -> None:
    """BitNet: norms within attention and within the feed-forward; weights may be rounded on loading."""
    names = {"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"}
    settings, ops = conversion.config.object(FIELD, {}), {}
    if settings.text("quant_method", "") == "bitnet":
        if settings.text("quantization_mode", "offline") != "online":
            reason = (
                "packed weights are not read; take the folder with bfloat16 weights, or a GGUF file in TQ2_0"
            )
            raise settings.error("quantization_mode", reason)
        ops = {name: TERNARY for name in LLAMA.values() if "norm" not in name}
    plain_decoder(conversion, LLAMA | names, weight_ops=ops)
    conversion.keys["hidden_activation"] = conversion.config.text("hidden_act", "relu2")


def mistral(conversion: Conversion) -> None:
    """Mistral: a llama that may have a window."""
    llama(conversion)
    window_everywhere(conversion)


def window_everywhere(conversion: Conversion) -> None:
    """Set the keys of a window of all layers, where `sliding_window` has one."""
    set_windows(conversion, conversion.config.integer("sliding_window", 0), [True] * conversion.n_layer)


def set_windows(conversion: Conversion, window: int, pattern: list[bool]) -> None:
    """Set the keys of a window that matters; `pattern` says which layers have it."""
    if 0 < window < conversion.keys["context_length"] and any(pattern):
        conversion.keys["attention.sliding_window"] = window
        conversion.keys["attention.sliding_window_pattern"] = pattern


def qwen(conversion: Conversion) -> None:
    """Qwen 2, 2.5 and 3: with `use_sliding_window`, layers from `max_window_layers` on have a window."""
    plain_decoder(conversion)
    config = conversion.config
    pattern = window_pattern(conversion) if "layer_types" in config else []
    conversion.keys.pop("attention.sliding_window_pattern", None)
    if not config.flag("use_sliding_window", False):
        if any(pattern):
            raise config.error("layer_types", "has layers with a window, but use_sliding_window is false")
        return
    first = config.integer("max_window_layers", 28)
    pattern = pattern or [i >= first for i in range(conversion.n_layer)]
    set_windows(conversion, config.integer("sliding_window", 0), pattern)


def qwen2vl(conversion: Conversion) -> None:
    """The language model of Qwen2-VL and Qwen2.5-VL: positions in three dimensions."""
    qwen(conversion)
    _sections(conversion, [16, 24, 24])


def qwen3vl(conversion: Conversion) -> None:
    """The language model of Qwen3-VL: positions in three dimensions, image features in its first layers."""
    plain_decoder(conversion)
    _sections(conversion, [24, 20, 20])
    taps = conversion.config.list("deepstack_visual_indexes", [])
    conversion.keys["n_deepstack_layers"] = len(taps)


def _sections(conversion: Conversion, usual: list[int]) -> None:
    """Set how many pairs of the rope each axis of positions has."""
    sections = rope_fields(conversion.config).list("mrope_section", usual)
    if len(sections) != 3 or not all(type(one) is int and one >= 0 for one in sections):
        raise conversion.config.error("mrope_section", "must be three counts")
    conversion.keys["rope.dimension_sections"] = [*sections, 0]


def ministral3(conversion: Conversion) -> None:
    """Ministral 3: queries scaled by the logarithm of their position."""
    plain_decoder(conversion, pairs="adjacent")
    scale = rope_fields(conversion.config).number("llama_4_scaling_beta", 0.0)
    if scale:
        conversion.keys["attention.temperature_scale"] = scale
    window_everywhere(conversion)


def smollm3(conversion: Conversion) -> None:
    """SmolLM3: every fourth layer has no rope."""
    config = conversion.config
    conversion.refuse("use_sliding_window", "a window")
    has_rope = config.list("no_rope_layers", [])  # 1 where there is one
    if has_rope and [bool(one) for one in has_rope] != [(i + 1) % 4 != 0 for i in range(conversion.n_layer)]:
        raise config.error("no_rope_layers", "only every fourth layer may have no rope")
    plain_decoder(conversion, pairs="adjacent")


def granite(conversion: Conversion) -> None:
    """Granite 3: four multipliers."""
    plain_decoder(conversion, pairs="adjacent")
    multipliers(conversion)


def multipliers(conversion: Conversion) -> None:
    """Set the keys of Granite's multipliers."""
    names = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    for name, key in names.items():
        if name in conversion.config:
            conversion.keys[key] = conversion.config.number(name)


def minicpm(conversion: Conversion) -> None:
    """MiniCPM: a llama with multipliers."""
    plain_decoder(conversion, pairs="adjacent")
    minicpm_multipliers(conversion)


def minicpm_multipliers(conversion: Conversion) -> None:
    """Set the keys of MiniCPM's multipliers."""
    config, hidden = conversion.config, conversion.keys["embedding_length"]
    conversion.keys |= {
        "embedding_scale": config.number("scale_emb", 12.0),
        "residual_scale": config.number("scale_depth", 1.4) * conversion.n_layer**-0.5,
        "logit_scale": hidden / config.number("dim_model_base", 256.0),
    }


def ernie(conversion: Conversion) -> None:
    """ERNIE 4.5: pairs of the rope are adjacent in transformers too."""
    conversion.refuse("use_bias", "biases")
    plain_decoder(conversion)


def seed_oss(conversion: Conversion) -> None:
    """Seed-OSS: biases of q, k and v."""
    conversion.refuse("attention_out_bias", "a bias of the output")
    conversion.refuse("mlp_bias", "a bias in the feed-forward")
    names = {**LLAMA, "post_attention_layernorm": "post_attention_norm"}
    plain_decoder(conversion, names)


def hunyuan(conversion: Conversion) -> None:
    """Hunyuan: q and k are normalised; its scaling is in the base that the file has."""
    rotated_by_base(conversion, plain_decoder(conversion, {**LLAMA, **MODULES["hunyuan"]}))


def rotated_by_base(conversion: Conversion, size: int) -> None:
    """Put Hunyuan's scaling of the rope into the base, for heads of that size."""
    rope = rope_fields(conversion.config)
    alpha = rope.number("alpha", 0.0)
    if rope.text("rope_type") == "dynamic" and alpha > 0:
        conversion.keys["rope.freq_base"] *= alpha ** (size / (size - 2))


def starcoder2(conversion: Conversion) -> None:
    """StarCoder 2: layer norms, biases everywhere, a plain feed-forward."""
    names = {**ATTENTION, **BEFORE_STARCODER, "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    plain_decoder(conversion, names)
    conversion.keys["attention.layer_norm_epsilon"] = conversion.config.number("norm_epsilon")
    window_everywhere(conversion)


BEFORE_STARCODER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def phi3(conversion: Conversion) -> None:
    """Phi-3 and Phi-4: q, k, v in one matrix, gate and up in another."""
    names = {**LLAMA, "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
    config = conversion.config
    plain_decoder(conversion, {k: v for k, v in names.items() if k not in FEED_FORWARD or "down" in k})
    conversion.keys.setdefault(
        "rope.scaling.original_context_length",
        config.integer("original_max_position_embeddings", conversion.keys["context_length"]),
    )
    conversion.keys["attention.sliding_window"] = config.integer("sliding_window", 0)


# Folders of models with norms in other places than Llama: OLMo, EXAONE, GLM-4, Cohere.

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
