"""Metadata that architectures with recurrent layers share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stretto.models import common
from stretto.models.common import MAX_HEAD_SIZE, Keys
from stretto.models.spec import Attention, DeltaNet, Dense, Experts, Layer, Mamba, Mamba2, ModelSpec, Norm

MAX_HEADS = 1 << 16
MAX_KERNEL = 16  # tokens of a convolution; models have 3 or 4


def kernel(keys: Keys, name: str) -> int:
    """The number of tokens that a convolution sees, at least 2."""
    size = keys.size(name, most=MAX_KERNEL)
    if size < 2:
        raise keys.error(name, f"a convolution over {size} token")
    return size


def _divided(keys: Keys, name: str, count: int, shares: int, what: str) -> int:
    """count / shares, which must be whole."""
    if count % shares:
        raise keys.error(name, f"{count} {what} cannot be divided by {shares}")
    return count // shares


def mamba(keys: Keys, norms: Callable[[str], Norm] | None = None) -> Mamba:
    """The layers of Mamba's first version; `norms(name)` is that of steps, B or C, with that name."""
    parts = {piece: f"ssm_{name}_norm" for piece, name in (("step", "dt"), ("b", "b"), ("c", "c"))}
    return Mamba(
        width=keys.size("ssm.inner_size"),
        state_size=keys.size("ssm.state_size", most=MAX_HEAD_SIZE),
        rank=keys.size("ssm.time_step_rank", most=MAX_HEADS),
        kernel=kernel(keys, "ssm.conv_kernel"),
        conv_bias=any(keys.has(f"blk.{i}.ssm_conv1d.bias") for i in range(keys.n_layer)),
        **{f"{piece}_norm": norms(name) for piece, name in parts.items() if norms is not None},
    )


def mamba2(keys: Keys, norm: bool, conv_bias: bool) -> Mamba2:
    """The Mamba-2 layers that the usual keys describe."""
    n_head = keys.size("ssm.time_step_rank", most=MAX_HEADS)
    n_group = keys.size("ssm.group_count", most=MAX_HEADS)
    inner = keys.size("ssm.inner_size")
    _divided(keys, "ssm.group_count", n_head, n_group, "heads")
    return Mamba2(
        n_head=n_head,
        head_size=_divided(keys, "ssm.inner_size", inner, n_head, "numbers"),
        n_group=n_group,
        state_size=keys.size("ssm.state_size", most=MAX_HEAD_SIZE),
        kernel=kernel(keys, "ssm.conv_kernel"),
        norm=Norm("ssm_norm", keys.eps) if norm else None,
        conv_bias=conv_bias,
    )


def delta_net(keys: Keys, tiled: bool, fused: bool) -> DeltaNet:
    """The gated delta nets that the usual keys describe."""
    n_head = keys.size("ssm.time_step_rank", most=MAX_HEADS)
    n_key_head = keys.size("ssm.group_count", most=MAX_HEADS)
    inner = keys.size("ssm.inner_size")
    _divided(keys, "ssm.group_count", n_head, n_key_head, "value heads")
    return DeltaNet(
        n_key_head=n_key_head,
        n_value_head=n_head,
        key_size=keys.size("ssm.state_size", most=MAX_HEAD_SIZE),
        value_size=_divided(keys, "ssm.inner_size", inner, n_head, "numbers"),
        kernel=kernel(keys, "ssm.conv_kernel"),
        norm=Norm("ssm_norm", keys.eps),
        tiled=tiled,
        fused=fused,
    )


def gated_attention(keys: Keys, axes: Callable[[int], tuple[int, ...]] | None = None) -> Attention:
    """Attention with a gate, and norms on each head's query and key; `axes(pairs)` are its rope's."""
    rope = common.read_rope(keys, "halves")
    rope = replace(rope, axes=axes and axes(len(rope.frequencies)), by_length=None)
    return common.attention(keys, rope, gate=True, **common.qk_norms(keys.eps))


def every_so_many(keys: Keys, net: DeltaNet, attends: Attention, ffn: Dense | Experts) -> ModelSpec:
    """A model of delta nets in which some layers attend: as the file says, or every fourth."""
    if "attention.recurrent_layers" in keys:
        nets = keys.flags("attention.recurrent_layers")
    else:
        period = keys.size("full_attention_interval", 4)
        nets = [(i + 1) % period != 0 for i in range(keys.n_layer)]
    norms = Norm("attn_norm", keys.eps), Norm("post_attention_norm", keys.eps)
    return common.decoder(keys, (Layer(net if recurs else attends, ffn, *norms) for recurs in nets))


def gated_experts(keys: Keys) -> Experts:
    """Experts by softmax, and a shared one with a gate."""
    shared = common.shared_expert(keys.size("expert_shared_feed_forward_length"))
    return common.mixture(keys, shared=shared, shared_gate=True)
