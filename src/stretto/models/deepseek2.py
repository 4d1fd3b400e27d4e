"""DeepSeek V2 and V3, Kimi K2, GLM 4.7 Flash: latent attention, dense first layers, shared experts."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import MAX_HEAD_SIZE, Keys
from stretto.models.feed_forward import FeedForward
from stretto.models.rope import magnitude
from stretto.models.spec import Experts, Latent, ModelSpec, Norm, Rope, plain_layer


def read(keys: Keys) -> ModelSpec:
    """The spec of a deepseek2 file."""
    keys.refuse("attention.temperature_scale", "a temperature by position")
    return with_experts(keys, [latent(keys)] * keys.n_layer)


def with_experts(keys: Keys, mixers: list[Latent]) -> ModelSpec:
    """A model of layers with this attention: a few dense ones, then experts."""
    common.refuse_caps(keys)
    n_dense, dense = common.dense_first(keys), common.dense(keys)
    ffns: list[FeedForward] = [dense] * n_dense
    if n_dense < keys.n_layer:
        ffns += [experts(keys, n_dense)] * (keys.n_layer - n_dense)
    layers = zip(mixers, ffns, strict=True)
    return common.decoder(keys, (plain_layer(mixer, ffn, keys.eps) for mixer, ffn in layers))


def latent(keys: Keys) -> Latent:
    """Attention, in either layout: recent files give the sizes of a head under names of their own."""
    absorbed = "attention.key_length_mla" in keys
    suffix = "_mla" if absorbed else ""
    size = keys.size(f"attention.key_length{suffix}", most=MAX_HEAD_SIZE)
    rotated = keys.rotated("rope.dimension_count", size - 1)
    frequencies, factor = common.read_frequencies(keys, rotated)
    # With a multiplier, YaRN's magnitude is that of all numbers; without, of the rotated ones.
    multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0, 0.0, 10.0)
    all_numbers = magnitude(factor, multiplier)
    rope = Rope(frequencies, "adjacent", 1.0 if multiplier else magnitude(factor))
    q_rank = keys.count("attention.q_lora_rank", most=MAX_HEAD_SIZE)
    return Latent(
        n_head=keys.size("attention.head_count"),
        q_rank=q_rank,
        rank=keys.size("attention.kv_lora_rank", most=MAX_HEAD_SIZE),
        nope_size=size - rotated,
        rope_size=rotated,
        value_size=keys.size(f"attention.value_length{suffix}", most=MAX_HEAD_SIZE),
        scale=all_numbers**2 * size**-0.5,
        rope=rope,
        q_norm=Norm("attn_q_a_norm", keys.eps) if q_rank else None,
        kv_norm=Norm("attn_kv_a_norm", keys.eps),
        fused=not absorbed,
    )


def experts(keys: Keys, first: int) -> Experts:
    """The experts of all layers from `first` on."""
    corrected = keys.has(f"blk.{first}.exp_probs_b.bias")
    # Files that do not say it: those with a correction (GLM's) have sigmoids, those of V2 have not.
    weights = common.gating(keys, "sigmoid" if corrected else "softmax")
    normalize = keys.flag("expert_weights_norm", False)
    choice = common.routing(keys, weights, normalize=normalize, correction=corrected)
    if weights == "softmax":  # V2 takes the groups with the best expert, V3 those with the best two
        choice = replace(choice, group_best=1)
    return common.mixture(keys, choice, shared=common.shared_experts(keys))
