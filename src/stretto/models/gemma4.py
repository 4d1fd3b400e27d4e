"""Gemma 4: windowed and global layers with heads of different sizes, values normalised.

Some models have embeddings for each layer and layers that share K and V (E2B, E4B), one has experts beside
its dense feed-forward (26B-A4B).
"""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import MAX_HEAD_SIZE, Keys
from stretto.models.spec import Attention, Dense, Experts, Layer, LayerInput, ModelSpec, Norm, PerLayer, Rope


def read(keys: Keys) -> ModelSpec:
    """The spec of a gemma4 file."""
    keys.refuse("attn_logit_softcapping", "a cap on attention scores")
    widths = keys.sizes("feed_forward_length")
    size = keys.count("embedding_length_per_layer_input", most=MAX_HEAD_SIZE)
    given = LayerInput(size, Norm("post_norm", keys.eps)) if size else None
    layers = (layer(keys, i, mixer, Dense(widths[i], "gelu"), given) for i, mixer in enumerate(mixers(keys)))
    return common.decoder(
        keys,
        layers,
        embedding_scale=keys.n_embd**0.5,
        logit_cap=keys.number("final_logit_softcapping", 0.0, 0.0, 1e6),
        per_layer=PerLayer(size, Norm("per_layer_proj_norm", keys.eps)) if size else None,
        windowed_images=not size,  # no key says it; it is so in the larger models
    )


def layer(keys: Keys, i: int, mixer: Attention, dense: Dense, given: LayerInput | None) -> Layer:
    """Layer i, with experts if the file has them there."""
    has_experts = keys.has(f"blk.{i}.ffn_gate_inp.weight")
    return Layer(
        mixer,
        experts(keys, i, dense) if has_experts else dense,
        norm=Norm("attn_norm", keys.eps),
        ffn_norm=None if has_experts else Norm("ffn_norm", keys.eps),
        post_norm=Norm("post_attention_norm", keys.eps),
        post_ffn_norm=Norm("post_ffw_norm", keys.eps),
        input=given,
        output_scale=keys.has(f"blk.{i}.layer_output_scale.weight"),
    )


def mixers(keys: Keys) -> list[Attention]:
    """The attention of each layer. The last ones read K and V of the last layer of their kind before."""
    windowed = keys.flags("attention.sliding_window_pattern")
    heads, kv_heads = keys.sizes("attention.head_count"), keys.sizes("attention.head_count_kv")
    own = keys.n_layer - keys.count("attention.shared_kv_layers", most=keys.n_layer - 1)
    last = {windowed[i]: i for i in range(own)}
    ropes = {kind: rope(keys, kind) for kind in set(windowed)}
    found = []
    for i, near in enumerate(windowed):
        source = None if i < own else last.get(near)
        if heads[i] % kv_heads[i] or (i >= own and (source is None or kv_heads[source] != kv_heads[i])):
            reason = f"{heads[i]} heads, which cannot share {kv_heads[i]} K/V heads of its own kind"
            raise keys.error("attention.head_count_kv", f"layer {i} has {reason}")
        found.append(
            Attention(
                heads[i],
                kv_heads[i],
                size(keys, near),
                scale=1.0,
                rope=ropes[near],
                window=keys.size("attention.sliding_window") if near else None,
                q_norm=Norm("attn_q_norm", keys.eps),
                k_norm=Norm("attn_k_norm", keys.eps),
                v_norm=Norm("attn_v_norm", keys.eps, weight=False),
                shared=source,
                values_are_keys=source is None and not keys.has(f"blk.{i}.attn_v.weight"),
            )
        )
    return found


def size(keys: Keys, near: bool) -> int:
    """The size of a head in windowed or in global layers."""
    suffix = "_swa" if near else ""
    found = keys.size(f"attention.key_length{suffix}", most=MAX_HEAD_SIZE)
    return common.check_head_size(keys, found, suffix)


def rope(keys: Keys, near: bool) -> Rope:
    """The rope of windowed or of global layers. The file stores divisors for the latter, as in Llama 3."""
    of_head = size(keys, near)
    if not near:
        return common.read_rope(keys, "halves", of_head)
    return common.read_local_rope(keys, keys.rotated("rope.dimension_count_swa", of_head, default=of_head))


def experts(keys: Keys, i: int, dense: Dense) -> Experts:
    """The experts of layer i beside its dense feed-forward, each between norms of its own."""
    eps = keys.eps
    router = Norm("ffn_gate_inp.scale", eps, bare=True)
    return common.mixture(
        keys,
        common.routing(keys, norm=router, score_scale=keys.n_embd**-0.5),
        activation="gelu",
        output_scale=keys.has(f"blk.{i}.ffn_down_exps.scale"),
        fused=keys.has(f"blk.{i}.ffn_gate_up_exps.weight"),
        norm=Norm("pre_ffw_norm_2", eps),
        post_norm=Norm("post_ffw_norm_2", eps),
        shared=dense,
        shared_norm=Norm("ffn_norm", eps),
        shared_post_norm=Norm("post_ffw_norm_1", eps),
    )
