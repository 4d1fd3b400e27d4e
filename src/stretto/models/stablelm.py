"""StableLM, and Orion: layer norms, a rope on a part of heads; parallel branches, norms of heads in some."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a stablelm or an orion file."""
    common.refuse_experts(keys)
    norms = {}
    if keys.has("blk.0.attn_q_norm.weight"):  # each head has weights of its own
        norms = {f"{n}_norm": Norm(f"attn_{n}_norm", keys.layer_eps, "layer", over="heads") for n in "qk"}
    mixer = common.attention(keys, "halves", **common.fused_biases(keys), **norms)
    return common.layer_norm_decoder(keys, mixer, common.dense(keys))
