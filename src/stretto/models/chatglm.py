"""ChatGLM 3 and GLM-4 9B (2024): biases of q, k and v, half of a head rotated, gate and up as one."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a chatglm file."""
    common.refuse_experts(keys)
    mixer = common.attention(keys, "adjacent", **common.fused_biases(keys))
    return common.uniform_decoder(keys, mixer, common.dense(keys, fused=True))
