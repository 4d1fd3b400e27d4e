"""GPT-NeoX and Pythia: branches side by side, each with a layer norm of its own, biases everywhere."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a gptneox file."""
    common.refuse_experts(keys)
    mixer = common.attention(keys, "halves", **common.fused_biases(keys))
    ffn, parallel = common.ungated(keys, "gelu_erf"), keys.flag("use_parallel_residual", True)
    return common.layer_norm_decoder(keys, mixer, ffn, parallel=parallel)
