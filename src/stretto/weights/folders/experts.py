"""Folders of models with plain attention and a mixture of experts."""

from __future__ import annotations

from stretto.weights.folders.conversion import (
    MAX_EXPERTS,
    MODULES,
    STACK,
    Conversion,
    adjacent,
    every_other,
    half,
    of_unit_length,
    rename,
    rows,
    shaped,
    turned,
    without_axis,
)
from stretto.weights.folders.decoder import (
    ATTENTION,
    BEFORE,
    FEED_FORWARD,
    LLAMA,
    plain_decoder,
    rope_fields,
    window_pattern,
)
from stretto.weights.folders.llama import multipliers, rotated_by_base, set_windows, window_everywhere
from stretto.weights.json_file import Fields
from stretto.weights.tensor import Op

SHARED = MODULES["shared_experts"]
PROJECTIONS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
WS = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}  # as Mixtral and LFM2 name them
SOFTMAX, SIGMOID = 1, 2  # codes of expert_gating_func


def take_experts(conversion: Conversion, module: str, names: dict[str, str] | None = None) -> None:
    """Take the experts of all layers that have them: a tensor for each, or one for all.

    `module` is where they are in a layer, such as "mlp.experts"; in one tensor, gate stands before up.
    """
    names = names or PROJECTIONS
    for i in range(conversion.n_layer):
        place, block = f"layers.{i}.{module}", f"blk.{i}"
        for part, target in names.items():
            first = f"{place}.0.{part}.weight"
            if conversion.has(first):
                count = next(n for n in range(1, MAX_EXPERTS + 1) if not conversion.has(_of(place, n, part)))
                sources = (_of(place, n, part) for n in range(count))
                conversion.take(f"{block}.{target}.weight", *sources, op=STACK)
        if conversion.has(f"{place}.gate_up_proj"):
            for which, target in enumerate(("ffn_gate_exps", "ffn_up_exps")):
                conversion.take(f"{block}.{target}.weight", f"{place}.gate_up_proj", op=half(which, 1))
            conversion.take(f"{block}.ffn_down_exps.weight", f"{place}.down_proj")


def _of(place: str, number: int, part: str) -> str:
    return f"{place}.{number}.{part}.weight"


COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")  # names that configurations have for it


def expert_keys(conversion: Conversion) -> None:
    """Set the number of experts, and of those that a token uses."""
    config, keys = conversion.config, conversion.keys
    count = next((name for name in COUNTS if name in config), COUNTS[0])
    keys["expert_count"] = config.integer(count, least=1, most=MAX_EXPERTS)
    keys["expert_used_count"] = config.integer("num_experts_per_tok", least=1, most=MAX_EXPERTS)
    if "moe_intermediate_size" in config:
        keys["expert_feed_forward_length"] = config.integer("moe_intermediate_size", least=1)


def mixtral(conversion: Conversion) -> None:
    """Mixtral: a llama with experts."""
    names = {**ATTENTION, **BEFORE, "block_sparse_moe.gate": "ffn_gate_inp"}
    plain_decoder(conversion, names, pairs="adjacent")
    expert_keys(conversion)
    take_experts(conversion, "block_sparse_moe.experts", WS)
    window_everywhere(conversion)


def qwen2moe(conversion: Conversion) -> None:
    """Qwen 2 MoE: a shared expert behind a gate of its own."""
    _refuse_dense_layers(conversion)
    shared = {**LLAMA, **SHARED, "mlp.gate": "ffn_gate_inp"}
    plain_decoder(conversion, shared, ops={"ffn_gate_inp_shexp": without_axis(0)})
    expert_keys(conversion)
    conversion.keys["expert_weights_norm"] = conversion.config.flag("norm_topk_prob", False)
    size = conversion.config.integer("shared_expert_intermediate_size", least=1)
    conversion.keys["expert_shared_feed_forward_length"] = size
    take_experts(conversion, "mlp.experts")


def qwen3moe(conversion: Conversion) -> None:
    """Qwen 3 MoE: norms of q and k."""
    _refuse_dense_layers(conversion)
    plain_decoder(conversion, {**LLAMA, "mlp.gate": "ffn_gate_inp"})
    expert_keys(conversion)
    conversion.keys["expert_weights_norm"] = conversion.config.flag("norm_topk_prob", False)
    take_experts(conversion, "mlp.experts")


def _refuse_dense_layers(conversion: Conversion) -> None:
    conversion.refuse("use_sliding_window", "a window")
    conversion.refuse("mlp_only_layers", "layers without experts", (None, []))
    conversion.refuse("decoder_sparse_step", "layers without experts", (None, 1))


def granitemoe(conversion: Conversion) -> None:
    """Granite MoE, with a shared expert or without one: four multipliers."""
    names = {**ATTENTION, **BEFORE, "block_sparse_moe.router.layer": "ffn_gate_inp"}
    plain_decoder(conversion, names, pairs="adjacent")
    multipliers(conversion)
    expert_keys(conversion)
    if size := conversion.config.integer("shared_intermediate_size", 0):
        conversion.keys["expert_shared_feed_forward_length"] = size
    take_granite(conversion, "_shexp")


def take_granite(conversion: Conversion, shared: str) -> None:
    """Take Granite's feed-forwards, which have gate and up in one matrix; `shared` ends the names of the
    shared expert."""
    for i in range(conversion.n_layer):
        for module, end, axis in (("block_sparse_moe", "_exps", 1), ("shared_mlp", shared, 0)):
            place = f"layers.{i}.{module}"
            if not conversion.has(f"{place}.input_linear.weight"):
                continue
            for which, part in enumerate(("gate", "up")):
                target, source = f"blk.{i}.ffn_{part}{end}.weight", f"{place}.input_linear.weight"
                conversion.take(target, source, op=half(which, axis))
            conversion.take(f"blk.{i}.ffn_down{end}.weight", f"{place}.output_linear.weight")


def glm4moe(conversion: Conversion) -> None:
    """GLM 4.5: dense first layers, routing by sigmoid with a bias; layers for speculation are left out."""
    names = {
        **ATTENTION,
        **FEED_FORWARD,
        **SHARED,
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
        "mlp.gate": "ffn_gate_inp",
    }
    plain_decoder(conversion, names)
    expert_keys(conversion)
    take_experts(conversion, "mlp.experts")
    routed_keys(conversion)
    ignore_further_layers(conversion)


def ignore_further_layers(conversion: Conversion) -> None:
    """Leave out layers behind the last, which predict further tokens."""
    conversion.ignore(rf"layers\.(?:{conversion.n_layer}|{conversion.n_layer + 1})\..*")


def dense_first(conversion: Conversion) -> int:
    """How many layers have a dense feed-forward, before those with experts."""
    config = conversion.config
    kinds = config.list("mlp_layer_types", [])
    if not kinds:
        return config.integer("first_k_dense_replace", 0)
    count = kinds.count("dense")
    if kinds != ["dense"] * count + ["sparse"] * (conversion.n_layer - count):
        raise config.error("mlp_layer_types", "dense layers must come first")
    return count


def routed_keys(conversion: Conversion) -> None:
    """Set the keys of routing as DeepSeek V3 and GLM 4.5 have it, and take its biases."""
    config, keys = conversion.config, conversion.keys
    keys |= {
        "expert_shared_count": config.integer("n_shared_experts", 0),
        "leading_dense_block_count": dense_first(conversion),
        "expert_weights_scale": config.number("routed_scaling_factor", 1.0),
        "expert_weights_norm": config.flag("norm_topk_prob", True),
        "expert_gating_func": SIGMOID,
        "expert_group_count": config.integer("n_group", 1, least=1),
        "expert_group_used_count": config.integer("topk_group", 1, least=1),
    }
    take_corrections(conversion)


def take_corrections(conversion: Conversion, op: Op | None = None) -> None:
    """Take the routers' biases for the choice, which stand in the router or beside it."""
    for i in range(conversion.n_layer):
        for place in ("mlp.gate", "mlp", "block_sparse_moe", "mlp.moe_statics", "mlp.gate.moe_statics"):
            if conversion.has(source := f"layers.{i}.{place}.e_score_correction_bias"):
                conversion.take(f"blk.{i}.exp_probs_b.bias", source, op=op)


def olmoe(conversion: Conversion) -> None:
    """OLMoE: norms of q and k over all heads."""
    conversion.refuse("clip_qkv", "clamped queries, keys and values")
    qwen3moe(conversion)
    conversion.keys["expert_feed_forward_length"] = conversion.config.integer("intermediate_size", least=1)


ERNIE = {**LLAMA, **SHARED, "mlp.gate": "ffn_gate_inp"}


def ernie_moe(conversion: Conversion) -> None:
    """ERNIE 4.5 with experts, which its configuration counts under names of its own."""
    conversion.refuse("use_bias", "biases")
    config, keys = conversion.config, conversion.keys
    plain_decoder(conversion, ERNIE)
    for name, key in (("moe_num_experts", "expert_count"), ("moe_k", "expert_used_count")):
        keys[key] = config.integer(name, least=1, most=MAX_EXPERTS)
    keys["expert_feed_forward_length"] = config.integer("moe_intermediate_size", least=1)
    keys["expert_shared_count"] = shared = config.integer("moe_num_shared_experts", 0)
    keys["expert_shared_feed_forward_length"] = shared * keys["expert_feed_forward_length"]
    keys["leading_dense_block_count"] = config.integer("moe_layer_start_index", 1)
    keys["interleave_moe_layer_step"] = config.integer("moe_layer_interval", 1, least=1)
    take_experts(conversion, "mlp.experts")
    take_corrections(conversion, without_axis(0))
    conversion.ignore(r"mtp_.*")


HUNYUAN = {
    **ATTENTION,
    **BEFORE,
    **MODULES["hunyuan"],
    "mlp.gate.wg": "ffn_gate_inp",
}


def hunyuan_moe(conversion: Conversion) -> None:
    """Hunyuan with experts; its lists have a number for each layer, and all have to be the same."""
    config, keys = conversion.config, conversion.keys
    rotated_by_base(conversion, plain_decoder(conversion, HUNYUAN))
    conversion.refuse("use_mixed_mlp_moe", "experts without a shared one", (None, True))
    width = config.integer("intermediate_size", least=1)
    keys["expert_count"] = config.integer("num_experts", least=1, most=MAX_EXPERTS)
    keys["expert_used_count"] = _of_all_layers(config, "moe_topk", 1)
    keys["expert_feed_forward_length"] = _of_all_layers(config, "moe_intermediate_size", width)
    keys["expert_shared_count"] = shared = _of_all_layers(config, "num_shared_expert", 1)
    keys["expert_shared_feed_forward_length"] = shared * width
    take_experts(conversion, "mlp.experts")


def _of_all_layers(config: Fields, name: str, default: int) -> int:
    """A number that all layers share; configurations may list it for each."""
    value = config.get(name)
    if not isinstance(value, list):
        return config.integer(name, default, least=1)
    if not value or not all(type(one) is int and one == value[0] >= 1 for one in value):
        raise config.error(name, "must be the same number for all layers, at least 1")
    return int(value[0])


def minimax(conversion: Conversion) -> None:
    """MiniMax M2: routing by sigmoid with a bias, norms of q and k over all heads, a part of them rotated."""
    config, keys = conversion.config, conversion.keys
    conversion.refuse("scoring_func", "another routing than by sigmoid", (None, "sigmoid"))
    names = {**ATTENTION, **BEFORE, "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp"}
    plain_decoder(conversion, names)
    if "rotary_dim" in config:
        keys["rope.dimension_count"] = config.integer("rotary_dim", least=1)
    expert_keys(conversion)
    keys["expert_feed_forward_length"] = config.integer("intermediate_size", least=1)
    keys["expert_gating_func"] = SIGMOID
    take_experts(conversion, "mlp.experts")
    take_experts(conversion, "block_sparse_moe.experts", WS)
    for i in range(conversion.n_layer):
        for place in ("mlp", "block_sparse_moe"):
            if conversion.has(source := f"layers.{i}.{place}.e_score_correction_bias"):
                conversion.take(f"blk.{i}.exp_probs_b.bias", source)


DOTS = {**LLAMA, **SHARED, "mlp.gate": "ffn_gate_inp"}


def dots(conversion: Conversion) -> None:
    """dots.llm1: norms of q and k, the routing of DeepSeek V3; windows in the layers that are listed."""
    plain_decoder(conversion, DOTS)
    expert_keys(conversion)
    routed_keys(conversion)
    take_experts(conversion, "mlp.experts")
    pattern = window_pattern(conversion)
    conversion.keys.pop("attention.sliding_window_pattern", None)
    set_windows(conversion, conversion.config.integer("sliding_window", 0), pattern)


def exaone(conversion: Conversion) -> None:
    """K-EXAONE: windows, no rope in global layers, the routing of DeepSeek V3."""
    config, keys = conversion.config, conversion.keys
    plain_decoder(conversion, DOTS)
    expert_keys(conversion)
    routed_keys(conversion)
    keys["expert_shared_count"] = shared = config.integer("num_shared_experts", 1)
    keys["expert_shared_feed_forward_length"] = shared * keys["expert_feed_forward_length"]
    take_experts(conversion, "mlp.experts")
    if any(window_pattern(conversion)):
        keys["attention.sliding_window"] = config.integer("sliding_window", least=1)


def hunyuan3(conversion: Conversion) -> None:
    """Hunyuan 3: a dense layer or some first, routing by sigmoid with a bias, a shared expert."""
    config, keys = conversion.config, conversion.keys
    plain_decoder(conversion, {**DOTS, **MODULES["hunyuan"], "mlp.router.gate": "ffn_gate_inp"})
    expert_keys(conversion)
    shared = config.integer("num_shared_experts", 1)
    keys |= {
        "expert_shared_feed_forward_length": shared * keys["expert_feed_forward_length"],
        "expert_weights_scale": config.number("router_scaling_factor", 1.0),
        "expert_weights_norm": config.flag("route_norm", True),
        "expert_gating_func": SIGMOID,
    }
    take_experts(conversion, "mlp.experts")
    for i in range(conversion.n_layer):  # by that name, which has no ending, in llama.cpp's files too
        for name in ("expert_bias", "e_score_correction_bias"):
            if conversion.has(source := f"layers.{i}.mlp.{name}"):
                conversion.take(f"blk.{i}.exp_probs_b", source)
    ignore_further_layers(conversion)


BAILING_WHOLE = {"word_embeddings": "token_embd", "norm": "output_norm", "lm_head": "output"}


def bailing(conversion: Conversion) -> None:
    """Ling and Ring, version 1 and 2: q, k and v one below the other."""
    second = conversion.has("layers.0.attention.query_layernorm.weight")
    if second:  # half of each head is rotated where the settings say nothing
        given = conversion.config
        conversion.config = Fields({"partial_rotary_factor": 0.5, **dict(given)}, given.path)
    config, keys = conversion.config, conversion.keys
    ops = {"output": of_unit_length(0)} if config.flag("norm_head", False) else {}
    names = {**DOTS, **MODULES["bailing"]} | ({"attention.query_key_value": "attn_qkv"} if second else {})
    size = plain_decoder(conversion, names, ops=ops, whole=BAILING_WHOLE)
    expert_keys(conversion)
    keys |= {
        "expert_shared_count": config.integer("num_shared_experts", 0),
        "leading_dense_block_count": dense_first(conversion),
        "expert_weights_norm": config.flag("norm_topk_prob", True),
    }
    take_experts(conversion, "mlp.experts")
    if not second:
        conversion.arch = "bailingmoe"
        n, n_kv = (keys[f"attention.head_count{end}"] * size for end in ("", "_kv"))
        ends = {"q": (0, n), "k": (n, n + n_kv), "v": (n + n_kv, n + 2 * n_kv)}
        for i in range(conversion.n_layer):
            for which, part in ends.items():
                op = rows(*part) if which == "v" else rows(*part).then(adjacent(size))
                for kind in ("weight", "bias"):
                    if conversion.has(source := f"layers.{i}.attention.query_key_value.{kind}"):
                        conversion.take(f"blk.{i}.attn_{which}.{kind}", source, op=op)
        return
    if config.text("score_function", "sigmoid") != "sigmoid":
        raise config.error("score_function", "only sigmoid is supported")
    keys |= {
        "expert_gating_func": SIGMOID,
        "expert_weights_scale": config.number("routed_scaling_factor", 1.0),
        "expert_group_count": config.integer("n_group", 1, least=1),
        "expert_group_used_count": config.integer("topk_group", 1, least=1),
    }
    for i in range(conversion.n_layer):
        if conversion.has(source := f"layers.{i}.mlp.gate.expert_bias"):
            conversion.take(f"blk.{i}.exp_probs_b.bias", source)
    ignore_further_layers(conversion)


def mellum(conversion: Conversion) -> None:
    """Mellum 2: windows in the layers that are listed, with a rope of their own."""
    config, keys = conversion.config, conversion.keys
    plain_decoder(conversion, {**LLAMA, "mlp.gate": "ffn_gate_inp"})
    expert_keys(conversion)
    conversion.refuse("norm_topk_prob", "weights that do not add up to one", (None, True))
    take_experts(conversion, "mlp.experts")
    if any(window_pattern(conversion)):
        near = rope_fields(config, "sliding_attention")
        if near.text("rope_type") != "default" or near.number("partial_rotary_factor", 1.0) != 1.0:
            raise near.error("rope_type", "windowed layers need a plain rope")
        keys["rope.freq_base_swa"] = near.number("rope_theta", keys["rope.freq_base"])
        keys["attention.sliding_window"] = config.integer("sliding_window", least=1)


def phimoe(conversion: Conversion) -> None:
    """Phi-3.5-MoE: layer norms with biases, a bias of the logits, SparseMixer."""
    config, keys = conversion.config, conversion.keys
    names = {**ATTENTION, **BEFORE, "mlp.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp"}
    plain_decoder(conversion, names)
    expert_keys(conversion)
    keys["expert_jitter"] = config.number("router_jitter_noise", 0.01)
    rope = rope_fields(config)
    if rope.text("rope_type") in ("longrope", "su"):
        magnitude = rope.number("long_mscale")
        if rope.number("short_mscale") != magnitude:
            raise rope.error("short_mscale", "must be equal to long_mscale")
        keys["rope.scaling.attn_factor"] = magnitude
    take_experts(conversion, "mlp.experts")
    take_experts(conversion, "block_sparse_moe.experts", WS)
    window_everywhere(conversion)


SMALL = {"gate": "ffn_gate_exps", "up": "ffn_up_exps", "down": "ffn_down_exps"}


def smallthinker(conversion: Conversion) -> None:
    """SmallThinker, whose configuration names everything in its own way."""
    config, keys, n = conversion.config, conversion.keys, conversion.n_layer
    names = {**ATTENTION, **BEFORE, "block_sparse_moe.primary_router": "ffn_gate_inp"}
    plain_decoder(conversion, names)
    counts = {
        "moe_num_primary_experts": "expert_count",
        "moe_num_active_primary_experts": "expert_used_count",
        "moe_ffn_hidden_size": "expert_feed_forward_length",
    }
    for name, key in counts.items():
        keys[key] = config.integer(name, least=1, most=1 << 31)
    keys["feed_forward_length"] = keys["expert_feed_forward_length"]
    keys["expert_gating_func"] = (
        SOFTMAX if config.flag("moe_primary_router_apply_softmax", False) else SIGMOID
    )
    conversion.refuse("moe_enable_secondary_experts", "further experts")
    conversion.refuse("moe_enable_early_router", "a late router", (None, True))
    conversion.refuse("norm_topk_prob", "weights that do not add up to one", (None, True))
    conversion.refuse("moe_layer_layout", "layers without experts", (None, [1] * n))
    pattern = [bool(one) for one in config.list("sliding_window_layout", [])] or [False] * n
    rotated = [bool(one) for one in config.list("rope_layout", [])] or [True] * n
    if rotated != (pattern if any(pattern) else [True] * n):
        raise config.error("rope_layout", "must be that of the windows, or all ones where there are none")
    if any(pattern):
        keys["attention.sliding_window"] = config.integer("sliding_window_size", least=1)
        keys["attention.sliding_window_pattern"] = pattern
    take_experts(conversion, "block_sparse_moe.experts", SMALL)


LLAMA4 = {
    **ATTENTION,
    **BEFORE,
    "feed_forward.router": "ffn_gate_inp",
    **{f"feed_forward.{part}_proj": f"ffn_{part}" for part in SMALL},
    **{f"feed_forward.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in SMALL},
}


def llama4(conversion: Conversion) -> None:
    """Llama 4: chunks with a rope, global layers without one, matrices of experts the other way round."""
    config, keys, n = conversion.config, conversion.keys, conversion.n_layer
    plain_decoder(conversion, LLAMA4)
    expert_keys(conversion)
    keys |= {
        "expert_feed_forward_length": config.integer("intermediate_size", least=1),
        "feed_forward_length": config.integer("intermediate_size_mlp", least=1),
        "interleave_moe_layer_step": config.integer("interleave_moe_layer_step", 1, least=1),
        "attention.qk_norm": config.flag("use_qk_norm", True),
    }
    _chunks(conversion)
    for i in range(n):
        place, block = f"layers.{i}.feed_forward.experts", f"blk.{i}"
        if conversion.has(f"{place}.gate_up_proj"):
            for which, target in enumerate(("ffn_gate_exps", "ffn_up_exps")):
                op = turned(1, 2).then(half(which, 1))
                conversion.take(f"{block}.{target}.weight", f"{place}.gate_up_proj", op=op)
            conversion.take(f"{block}.ffn_down_exps.weight", f"{place}.down_proj", op=turned(1, 2))


def _chunks(conversion: Conversion) -> None:
    """Set the keys of Llama 4's layers: chunks, and the growth of queries in layers without a rope."""
    config, keys, n = conversion.config, conversion.keys, conversion.n_layer
    interval = config.integer("no_rope_layer_interval", 4, least=1)
    listed = config.list("no_rope_layers", [])[:n]
    rotated = [bool(one) for one in listed] or [(i + 1) % interval != 0 for i in range(n)]
    kinds = config.list("layer_types", []) or ["chunked_attention" if one else "" for one in rotated]
    chunked = [kind == "chunked_attention" for kind in kinds]
    if chunked != rotated and not (all(rotated) and not any(chunked)):
        raise config.error("no_rope_layers", "a layer must have a rope where it attends to a chunk")
    if not any(chunked):
        keys["attention.sliding_window"] = 0
        return
    keys["attention.sliding_window"] = config.integer("attention_chunk_size", 8192, least=1)
    keys["attention.sliding_window_pattern"] = chunked
    grows = config.flag("attn_temperature_tuning", True)
    keys["attention.temperature_scale"] = config.number("attn_scale", 0.1) if grows else 0.0
    keys["attention.temperature_length"] = config.integer("floor_scale", 8192, least=1)


def cohere(conversion: Conversion) -> None:
    """Command A+: a dense layer or some first, windows, the mean of experts and a shared one."""
    config, keys = conversion.config, conversion.keys
    conversion.refuse("attention_bias", "biases")
    plain_decoder(conversion, DOTS)
    width = config.integer("intermediate_size", least=1)
    keys["feed_forward_length"] = config.integer("prefix_dense_intermediate_size", width, least=1)
    keys["logit_scale"] = config.number("logit_scale", 0.0625)
    keys["attention.sliding_window"] = config.integer("sliding_window", least=1)
    window_pattern(conversion)
    _cohere_experts(conversion, width)


def _cohere_experts(conversion: Conversion, width: int) -> None:
    config, keys = conversion.config, conversion.keys
    expert_keys(conversion)
    n_dense = dense_first(conversion)
    if config.integer("prefix_dense_sliding_window_pattern", 1) != 1 and n_dense:
        raise config.error("prefix_dense_sliding_window_pattern", "must be 1")
    by_softmax = config.text("expert_selection_fn", "softmax") == "softmax"
    shared = config.integer("num_shared_experts", 0)
    if shared:
        conversion.refuse("shared_expert_combination_strategy", "another sum", (None, "average"))
    keys |= {
        "leading_dense_block_count": n_dense,
        "expert_feed_forward_length": width,
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": shared * width,
        "expert_gating_func": SOFTMAX if by_softmax else SIGMOID,
        # A softmax of the chosen is that of all, with weights that add up to one.
        "expert_weights_norm": by_softmax or config.flag("norm_topk_prob", True),
    }
    take_experts(conversion, "mlp.experts")


DBRX_WHOLE = {"wte": "token_embd", "norm_f": "output_norm", "lm_head": "output"}


def dbrx(conversion: Conversion) -> None:
    """DBRX: attention and experts have settings of their own; experts stand one below the other."""
    rename(conversion, MODULES["gpt_sizes"])
    config, keys = conversion.config, conversion.keys
    attention, experts = config.object("attn_config"), config.object("ffn_config")
    if experts.object("ffn_act_fn", {}).text("name", "silu") != "silu":
        raise experts.error("ffn_act_fn", "only silu is supported")
    if experts.number("moe_normalize_expert_weights", 0.0) != 1.0:
        raise experts.error(
            "moe_normalize_expert_weights", "only 1, weights that add up to one, is supported"
        )
    given = {"rope_theta": attention.get("rope_theta"), "num_key_value_heads": attention.get("kv_n_heads")}
    conversion.config = Fields({**dict(config), **given}, config.path)
    plain_decoder(conversion, MODULES["dbrx"], whole=DBRX_WHOLE, layer="blocks.{}.")
    n, width = (experts.integer(name, least=1) for name in ("moe_num_experts", "ffn_hidden_size"))
    keys |= {
        "attention.layer_norm_epsilon": 1e-5,  # transformers has no other
        "feed_forward_length": width,
        "expert_count": n,
        "expert_used_count": experts.integer("moe_top_k", least=1),
    }
    if attention.get("clip_qkv"):
        keys["attention.clamp_kqv"] = attention.number("clip_qkv")
    matrices = shaped(n, width, keys["embedding_length"])
    for i in range(conversion.n_layer):
        for name, part in (("w1", "gate"), ("v1", "up"), ("w2", "down")):
            op = matrices.then(turned(1, 2)) if part == "down" else matrices
            conversion.take(f"blk.{i}.ffn_{part}_exps.weight", f"blocks.{i}.ffn.experts.mlp.{name}", op=op)


# Folders of gpt-oss: sinks, windows in every other layer, experts in MXFP4 or in plain numbers.

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
