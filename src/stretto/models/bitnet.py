"""BitNet b1.58: norms within attention and feed-forward, weights of −1, 0 and 1 times a number."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec, Norm

RELU2_VOCABULARY = 128_256  # of the 2B-4T, the one published model with relu²; its files do not say it


def read(keys: Keys) -> ModelSpec:
    """The spec of a bitnet file."""
    common.refuse_experts(keys)
    usual = "relu2" if keys.tensor("token_embd.weight").shape[0] == RELU2_VOCABULARY else "silu"
    activation = keys.file.metadata.text(keys.key("hidden_activation"), usual)
    if activation not in ("silu", "relu2"):
        raise keys.error("hidden_activation", f"{activation!r} is not supported; silu and relu2 are")
    mixer = common.attention(keys, "halves", mixed_norm=Norm("attn_sub_norm", keys.eps))
    ffn = common.dense(keys, activation=activation, inner_norm=Norm("ffn_sub_norm", keys.eps))
    return common.uniform_decoder(keys, mixer, ffn)
