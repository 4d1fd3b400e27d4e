"""OLMo 2 and 3: norms after attention and feed-forward only, q and k normalised as a whole.

OLMo 3 has windows in three of four layers; the scaling of its rope is for the other layers only.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys, attention, decoder, head_size, refuse_experts, windowed
from stretto.models.rope import read_plain_rope, read_rope
from stretto.models.spec import Attention, Dense, Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF

PERIOD = 4  # every fourth layer of OLMo 3 is global, unless the file says otherwise


def read(file: GGUF) -> ModelSpec:
    """The spec of an olmo2 file."""
    keys = Keys(file, "olmo2")
    refuse_experts(keys)
    ffn, eps = Dense(keys.size("feed_forward_length")), keys.eps
    after = Norm("post_attention_norm", eps), Norm("post_ffw_norm", eps)
    return decoder(keys, (Layer(mixer, ffn, None, None, *after) for mixer in _mixers(keys)))


def _mixers(keys: Keys) -> list[Attention]:
    size, eps = head_size(keys.file, keys.arch), keys.eps
    wide = attention(
        keys,
        read_rope(keys.file, keys.arch, size, "halves"),
        q_norm=Norm("attn_q_norm", eps, over="all"),
        k_norm=Norm("attn_k_norm", eps, over="all"),
    )
    window = keys.count("attention.sliding_window")
    if not window:
        return [wide] * keys.n_layer
    near = replace(wide, rope=read_plain_rope(keys.file, keys.arch, size, "halves"), window=window)
    return [near if narrow else wide for narrow in windowed(keys, PERIOD)]
