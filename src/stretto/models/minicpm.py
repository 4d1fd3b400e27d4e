"""MiniCPM 1 and 2: a Llama with multipliers of embeddings, residuals and logits; 3: with latent attention."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import MAX_HEAD_SIZE, Keys
from stretto.models.mixers import Mixer
from stretto.models.spec import Latent, ModelSpec, Norm, plain_layer

# What the models were trained with; older files do not say it.
EMBEDDING_SCALE, DEPTH_SCALE, BASE_WIDTH = 12.0, 1.4, 256


def read(keys: Keys) -> ModelSpec:
    """The spec of a minicpm file."""
    return scaled_decoder(keys, common.attention(keys, "adjacent", **common.attention_biases(keys)))


def read_latent(keys: Keys) -> ModelSpec:
    """The spec of a minicpm3 file."""
    n_head = keys.size("attention.head_count")
    size = keys.size("attention.key_length", most=MAX_HEAD_SIZE)
    rotated = keys.rotated("rope.dimension_count", size - 1)
    q_rank = keys.count("attention.q_lora_rank", most=MAX_HEAD_SIZE)
    share = keys.n_embd // n_head or 1
    mixer = Latent(
        n_head=n_head,
        q_rank=q_rank,
        rank=keys.size("attention.kv_lora_rank", most=MAX_HEAD_SIZE),
        nope_size=size - rotated,
        rope_size=rotated,
        value_size=keys.size("attention.value_length", share, most=MAX_HEAD_SIZE),
        scale=size**-0.5,
        rope=common.read_rope(keys, "halves", rotated),
        q_norm=Norm("attn_q_a_norm", keys.eps) if q_rank else None,
        kv_norm=Norm("attn_kv_a_norm", keys.eps),
        fused=True,
    )
    return scaled_decoder(keys, mixer)


def scaled_decoder(keys: Keys, mixer: Mixer) -> ModelSpec:
    """A model of such layers with MiniCPM's multipliers."""
    common.refuse_experts(keys)
    depth = keys.number("residual_scale", DEPTH_SCALE * keys.n_layer**-0.5, 1e-6, 1e6)
    layer = plain_layer(mixer, common.dense(keys), keys.eps, residual_scale=depth)
    return common.decoder(
        keys,
        (layer,) * keys.n_layer,
        embedding_scale=keys.number("embedding_scale", EMBEDDING_SCALE, 1e-6, 1e6),
        logit_scale=1 / keys.number("logit_scale", keys.n_embd / BASE_WIDTH, 1e-6, 1e6),
    )
