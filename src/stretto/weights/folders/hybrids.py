"""Folders of models with short convolutions or gated delta nets: LFM2, Qwen3-Next, Qwen3.5."""

from __future__ import annotations

import numpy as np

from stretto.weights.folders import decoder
from stretto.weights.folders.conversion import (
    JOIN,
    MODULES,
    NEGATIVE_EXP,
    Conversion,
    plus,
    rows,
    shaped,
    without_axis,
)
from stretto.weights.folders.experts import SHARED, SIGMOID, WS, expert_keys, take_experts
from stretto.weights.tensor import Array, Op, Shape

LFM2 = MODULES["lfm2"]
QWEN = {**decoder.ATTENTION, **decoder.FEED_FORWARD, **SHARED, **MODULES["qwen35"]}


def lfm2(conversion: Conversion) -> None:
    """LFM2: short convolutions beside attention, perhaps with experts."""
    config, keys = conversion.config, conversion.keys
    conversion.refuse("conv_bias", "a bias of the convolution")
    size = decoder.common_keys(conversion)
    decoder.rope_keys(conversion, size)
    heads = keys["attention.head_count_kv"]
    keys["attention.head_count_kv"] = [
        heads if kind == "full_attention" else 0 for kind in _kinds(conversion)
    ]
    keys["shortconv.l_cache"] = config.integer("conv_L_cache", least=2)
    keys["feed_forward_length"] = _lfm2_width(conversion)
    decoder.take_whole(
        conversion, {"embed_tokens": "token_embd", "embedding_norm": "token_embd_norm", "lm_head": "output"}
    )
    conversion.take_layers(LFM2, {"shortconv.conv": without_axis(1)})
    if "num_experts" in config:
        expert_keys(conversion)
        keys["leading_dense_block_count"] = config.integer("num_dense_layers", 0)
        keys["expert_gating_func"] = SIGMOID
        if config.flag("norm_topk_prob", True) is not True:
            raise config.error("norm_topk_prob", "only weights that add up to one are supported")
        take_experts(conversion, "feed_forward.experts", WS)
        for i in range(conversion.n_layer):
            if conversion.has(f"layers.{i}.feed_forward.expert_bias"):
                conversion.take(f"blk.{i}.exp_probs_b.bias", f"layers.{i}.feed_forward.expert_bias")


def _kinds(conversion: Conversion) -> list[str]:
    kinds = conversion.config.list("layer_types", [])
    if not kinds:  # older configurations list the layers that attend
        attend = conversion.config.list("full_attn_idxs")
        kinds = ["full_attention" if i in attend else "conv" for i in range(conversion.n_layer)]
    if len(kinds) != conversion.n_layer or not all(isinstance(kind, str) for kind in kinds):
        raise conversion.config.error("layer_types", "must name the kind of each layer")
    return kinds


def _lfm2_width(conversion: Conversion) -> int:
    """The width of the feed-forward, which some configurations give before it is adjusted."""
    source = "layers.0.feed_forward.w1.weight"
    if conversion.has(source):
        return conversion.shape(source)[0]
    return conversion.config.integer("intermediate_size", least=1)


class DeltaNet:
    """The sizes of a gated delta net: heads of keys and of values, and the size of both."""

    def __init__(self, conversion: Conversion) -> None:
        config = conversion.config
        self.keys = config.integer("linear_num_key_heads", least=1, most=4096)
        self.values = config.integer("linear_num_value_heads", least=1, most=4096)
        self.size = config.integer("linear_value_head_dim", least=1, most=1 << 16)
        if self.values % self.keys or config.integer("linear_key_head_dim", least=1) != self.size:
            raise config.error("linear_num_value_heads", "does not fit the heads of keys")
        self.key_rows = 2 * self.keys * self.size

    def metadata(self, kernel: int) -> dict[str, int]:
        """The keys of a GGUF file."""
        return {
            "ssm.conv_kernel": kernel,
            "ssm.state_size": self.size,
            "ssm.group_count": self.keys,
            "ssm.time_step_rank": self.values,
            "ssm.inner_size": self.values * self.size,
        }

    def tiled(self, axis: int = 0, first: int = 0) -> Op:
        """Value heads as Qwen3.5's files have them: head i belongs to key head i mod n, not i div r.

        Rows before `first` are those of queries and keys, and stay.
        """

        def apply(array: Array) -> Array:
            kept, values = np.split(array, [first], axis=axis)
            shape = values.shape
            heads = values.reshape(*shape[:axis], self.keys, self.values // self.keys, -1, *shape[axis + 1 :])
            return np.concatenate([kept, heads.swapaxes(axis, axis + 1).reshape(shape)], axis=axis)

        def check(given: Shape) -> Shape:
            if len(given) <= axis or (given[axis] - first) <= 0 or (given[axis] - first) % self.values:
                raise ValueError(f"{given} are no {self.values} heads")
            return given

        return Op(apply, check)


def qwen35(conversion: Conversion) -> None:
    """Qwen3.5, perhaps with experts."""
    net = _qwen_keys(conversion)
    sections = decoder.rope_fields(conversion.config).list("mrope_section", [])
    if sections:
        if len(sections) != 3 or not all(type(one) is int and one >= 0 for one in sections):
            raise conversion.config.error("mrope_section", "must be three counts")
        conversion.keys["rope.dimension_sections"] = [*sections, 0]
    for i in range(conversion.n_layer):
        place, block = f"layers.{i}.linear_attn", f"blk.{i}"
        if not conversion.has(f"{place}.A_log"):
            continue
        mixed = net.tiled(0, net.key_rows)
        conversion.take(f"{block}.attn_qkv.weight", f"{place}.in_proj_qkv.weight", op=mixed)
        conversion.take(f"{block}.attn_gate.weight", f"{place}.in_proj_z.weight", op=net.tiled())
        conversion.take(f"{block}.ssm_beta.weight", f"{place}.in_proj_b.weight", op=net.tiled())
        conversion.take(f"{block}.ssm_alpha.weight", f"{place}.in_proj_a.weight", op=net.tiled())
        conversion.take(f"{block}.ssm_out.weight", f"{place}.out_proj.weight", op=net.tiled(1))
        kernel = without_axis(1).then(mixed)
        conversion.take(f"{block}.ssm_conv1d.weight", f"{place}.conv1d.weight", op=kernel)
        conversion.take(f"{block}.ssm_a", f"{place}.A_log", op=net.tiled().then(NEGATIVE_EXP))
        conversion.take(f"{block}.ssm_dt.bias", f"{place}.dt_bias", op=net.tiled())


def qwen3next(conversion: Conversion) -> None:
    """Qwen3-Next: one projection goes key head by key head, and becomes two."""
    net = _qwen_keys(conversion)
    hidden, r = conversion.keys["embedding_length"], net.values // net.keys
    heads, cuts = shaped(net.keys, -1, hidden), np.cumsum([net.size, net.size, r * net.size]).tolist()
    for i in range(conversion.n_layer):
        place, block = f"layers.{i}.linear_attn", f"blk.{i}"
        if not conversion.has(f"{place}.A_log"):
            continue
        ends = [0, *cuts, cuts[-1] + r * net.size]
        q, k, v, z = (heads.then(rows(ends[n], ends[n + 1], 1)).then(shaped(-1, hidden)) for n in range(4))
        source = f"{place}.in_proj_qkvz.weight"
        joined = Op(
            lambda array, parts=(q, k, v): JOIN.apply(*(part.apply(array) for part in parts)),
            lambda given, parts=(q, k, v): JOIN.shape(*(part.shape(given) for part in parts)),
        )
        conversion.take(f"{block}.attn_qkv.weight", source, op=joined)
        conversion.take(f"{block}.attn_gate.weight", source, op=z)
        conversion.take(f"{block}.ssm_conv1d.weight", f"{place}.conv1d.weight", op=without_axis(1))
        conversion.take(f"{block}.ssm_a", f"{place}.A_log", op=NEGATIVE_EXP)
        conversion.take(f"{block}.ssm_dt.bias", f"{place}.dt_bias")
        conversion.take(f"{block}.ssm_out.weight", f"{place}.out_proj.weight")


def _qwen_keys(conversion: Conversion) -> DeltaNet:
    """Set the keys and take the tensors that both have."""
    config, keys = conversion.config, conversion.keys
    size = decoder.common_keys(conversion)
    decoder.rope_keys(conversion, size)
    net = DeltaNet(conversion)
    keys |= net.metadata(config.integer("linear_conv_kernel_dim", least=2))
    kinds = _kinds(conversion) if "layer_types" in config else []
    every = config.integer("full_attention_interval", 4, least=1)
    if kinds:
        wide = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
        every = wide[0] + 1 if wide else len(kinds) + 1
        if wide != list(range(every - 1, len(kinds), every)):
            raise config.error("layer_types", "layers that attend must come at equal distances")
    keys["full_attention_interval"] = every
    offset = plus(1.0)
    norms = {target: offset for target in QWEN.values() if target.endswith("norm") and target != "ssm_norm"}
    decoder.take_whole(conversion, ops={"output_norm": offset})
    gate = {"ffn_gate_inp_shexp": without_axis(0)} if conversion.arch == "qwen3next" else {}
    conversion.take_layers(QWEN, {**norms, **gate})
    if "num_experts" in config:
        expert_keys(conversion)
        keys["expert_shared_feed_forward_length"] = config.integer("shared_expert_intermediate_size", least=1)
        take_experts(conversion, "mlp.experts")
    return net
