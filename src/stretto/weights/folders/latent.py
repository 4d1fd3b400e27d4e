"""Folders of models with latent attention (MLA): DeepSeek, GLM 4.7 Flash, GLM 5, MiniCPM 3, Kimi Linear."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stretto.weights.folders import decoder, experts
from stretto.weights.folders.conversion import (
    MODULES,
    NEGATIVE_EXP,
    Conversion,
    rename,
    rows,
    shaped,
    turned,
    without_axis,
)
from stretto.weights.folders.llama import minicpm_multipliers

NAMES = {**decoder.ATTENTION, **decoder.FEED_FORWARD, **decoder.BEFORE, **experts.SHARED, **MODULES["latent"]}


def deepseek(conversion: Conversion, further: Mapping[str, str] | None = None) -> None:
    """DeepSeek V2 and V3, and models of their layout; `further` modules of a layer."""
    latent_keys(conversion)
    _yarn_keys(conversion)
    _routing(conversion)
    decoder.take_whole(conversion)
    conversion.take_layers({**NAMES, **(further or {})})
    experts.take_experts(conversion, "mlp.experts")
    take_latent(conversion, range(conversion.n_layer))
    experts.ignore_further_layers(conversion)


def deepseek32(conversion: Conversion) -> None:
    """DeepSeek V3.2: attention to the tokens that an indexer chooses."""
    _indexer_keys(conversion, interleaved=False)
    deepseek(conversion, MODULES["indexer"])


def glm5(conversion: Conversion) -> None:
    """GLM 5: the same, with layers that take the choice of one before them."""
    config, n = conversion.config, conversion.n_layer
    _indexer_keys(conversion, interleaved=True)
    kinds = config.list("indexer_types", [])
    pattern = config.get("index_topk_pattern")
    if not kinds and isinstance(pattern, (str, list)):
        kinds = [{"F": "full", "S": "shared"}.get(str(kind), kind) for kind in pattern]
    if not kinds:
        every = config.integer("index_topk_freq", 1, least=1)
        first = config.integer("index_skip_topk_offset", 2)
        kinds = ["shared" if max(i - first + 1, 0) % every else "full" for i in range(n)]
    if len(kinds) != n or not all(kind in ("full", "shared") for kind in kinds) or kinds[0] != "full":
        reason = f"must be 'full' or 'shared' for each of {n} layers, the first one 'full'"
        raise config.error("indexer_types", reason)
    conversion.keys["attention.indexer.types"] = [kind == "full" for kind in kinds]
    deepseek(conversion, MODULES["indexer"])


def _indexer_keys(conversion: Conversion, interleaved: bool) -> None:
    config = conversion.config
    names = {"head_count": "index_n_heads", "key_length": "index_head_dim", "top_k": "index_topk"}
    for key, name in names.items():
        conversion.keys[f"attention.indexer.{key}"] = config.integer(name, least=1)
    if config.get("indexer_rope_interleave", interleaved) is not interleaved:
        raise config.error("indexer_rope_interleave", f"only {interleaved} is supported")


def latent_keys(conversion: Conversion) -> None:
    """Set the keys of attention with keys and values of all heads from one latent vector."""
    config, keys = conversion.config, conversion.keys
    sizes = "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"
    plain, rotated, value, latent = (config.integer(name, least=1) for name in sizes)
    decoder.common_keys(conversion, rotated)
    decoder.rope_keys(conversion, rotated)
    keys |= {
        "attention.head_count_kv": 1,
        "attention.key_length": latent + rotated,
        "attention.value_length": latent,
        "attention.key_length_mla": plain + rotated,
        "attention.value_length_mla": value,
        "attention.kv_lora_rank": latent,
    }
    if (rank := config.integer("q_lora_rank", 0)) > 0:
        keys["attention.q_lora_rank"] = rank


def take_latent(conversion: Conversion, layers: Iterable[int]) -> None:
    """Take the matrices of K and V, which are one in folders."""
    config, keys = conversion.config, conversion.keys
    plain, value = (config.integer(name, least=1) for name in ("qk_nope_head_dim", "v_head_dim"))
    heads = shaped(keys["attention.head_count"], plain + value, keys["attention.kv_lora_rank"])
    for i in layers:
        source = f"layers.{i}.self_attn.kv_b_proj.weight"
        conversion.take(
            f"blk.{i}.attn_k_b.weight", source, op=heads.then(rows(0, plain, 1)).then(turned(1, 2))
        )
        conversion.take(f"blk.{i}.attn_v_b.weight", source, op=heads.then(rows(plain, plain + value, 1)))


KIMI = {**NAMES, **MODULES["kimi"]}


def kimi(conversion: Conversion) -> None:
    """Kimi Linear: delta attention, and latent attention without positions in the layers that are listed."""
    names = {
        "num_experts_per_token": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
        "num_expert_group": "n_group",
        "moe_renormalize": "norm_topk_prob",
        "model_max_length": "max_position_embeddings",
    }
    rename(conversion, names)
    config, keys, n = conversion.config, conversion.keys, conversion.n_layer
    latent_keys(conversion)
    linear = config.object("linear_attn_config")
    attends = [i for i in range(n) if i + 1 in linear.list("full_attn_layers")]
    if config.get("mla_use_nope") is not True and attends:
        raise config.error("mla_use_nope", "only true, no positions, is supported")
    conversion.refuse("moe_router_activation_func", "another routing than by sigmoid", (None, "sigmoid"))
    keys["attention.head_count_kv"] = [int(i in attends) for i in range(n)]
    keys["kda.head_dim"] = linear.integer("head_dim", least=1)
    if linear.integer("num_heads", least=1) != keys["attention.head_count"]:
        raise linear.error("num_heads", "must be that of attention")
    keys["ssm.conv_kernel"] = linear.integer("short_conv_kernel_size", least=2)
    experts.expert_keys(conversion)
    experts.routed_keys(conversion)
    decoder.take_whole(conversion)
    conversion.take_layers(KIMI)
    for i in range(n):
        if i in attends:
            continue
        place, block = f"layers.{i}.self_attn", f"blk.{i}"
        conversion.take(f"{block}.ssm_a", f"{place}.A_log", op=NEGATIVE_EXP.then(shaped(-1)))
        conversion.take(f"{block}.ssm_dt.bias", f"{place}.dt_bias")
        for which in "qkv":
            source = f"{place}.{which}_conv1d.weight"
            op = without_axis(1) if len(conversion.shape(source)) > 2 else None
            conversion.take(f"{block}.ssm_conv1d_{which}.weight", source, op=op)
    experts.take_experts(conversion, "block_sparse_moe.experts", experts.WS)
    take_latent(conversion, attends)
    for i in range(n):
        if conversion.has(source := f"layers.{i}.block_sparse_moe.gate.e_score_correction_bias"):
            conversion.take(f"blk.{i}.exp_probs_b.bias", source)


def minicpm3(conversion: Conversion) -> None:
    """MiniCPM 3: latent attention whose matrices of K and V stay one, in a dense model with multipliers."""
    config, keys = conversion.config, conversion.keys
    plain, rotated = (config.integer(name, least=1) for name in ("qk_nope_head_dim", "qk_rope_head_dim"))
    decoder.common_keys(conversion, rotated)
    decoder.rope_keys(conversion, rotated)
    share = keys["embedding_length"] // keys["attention.head_count"]
    keys |= {
        "attention.key_length": plain + rotated,
        "attention.value_length": config.integer("v_head_dim", share, least=1),
        "attention.kv_lora_rank": config.integer("kv_lora_rank", least=1),
    }
    if (rank := config.integer("q_lora_rank", 0)) > 0:
        keys["attention.q_lora_rank"] = rank
    minicpm_multipliers(conversion)
    decoder.take_whole(conversion)
    conversion.take_layers({**decoder.LLAMA, **MODULES["latent"], "self_attn.kv_b_proj": "attn_kv_b"})


def _routing(conversion: Conversion) -> None:
    config, keys = conversion.config, conversion.keys
    experts.expert_keys(conversion)
    experts.routed_keys(conversion)
    if config.text("model_type") == "deepseek_v2":
        keys["expert_gating_func"] = (
            experts.SIGMOID if config.get("scoring_func") == "sigmoid" else experts.SOFTMAX
        )
        keys["expert_weights_norm"] = config.flag("norm_topk_prob", False)
        if config.text("topk_method", "greedy") == "greedy":  # groups are not used
            del keys["expert_group_count"], keys["expert_group_used_count"]


def _yarn_keys(conversion: Conversion) -> None:
    """Set the multiplier of YaRN's magnitude, which files have as a tenth; there is no other."""
    rope, keys = decoder.rope_fields(conversion.config), conversion.keys
    for name in ("yarn_attn_factor", "yarn_log_multiplier"):
        keys.pop(f"rope.scaling.{name}", None)
    if rope.text("rope_type") != "yarn":
        return
    scale = rope.number("mscale_all_dim", 0.0)
    if rope.number("mscale", scale) != scale:
        raise rope.error("mscale", "must be equal to mscale_all_dim")
    keys["rope.scaling.yarn_log_multiplier"] = 0.1 * scale
