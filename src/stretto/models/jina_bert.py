"""Jina's BERTs: version 2 with ALiBi instead of positions, version 3 with rotary positions."""

from __future__ import annotations

from math import log2

from stretto.models.common import Keys, head_size, refuse_experts
from stretto.models.encoders import encoder, post_norm_layer, two_way
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, ModelSpec
from stretto.weights.gguf import GGUF

MOST_ALIBI = 8.0  # the first head's slope is 2^(−8 / heads)


def read_v2(file: GGUF) -> ModelSpec:
    """The spec of a jina-bert-v2 file."""
    keys = Keys(file, "jina-bert-v2")
    refuse_experts(keys)
    n_ff = keys.size("feed_forward_length")
    up = file.tensors.get("blk.0.ffn_up.weight")
    fused = not keys.has("blk.0.ffn_gate.weight") and up is not None and up.shape[0] == 2 * n_ff
    ffn = Dense(
        n_ff,
        "gelu_erf",
        gated=fused or keys.has("blk.0.ffn_gate.weight"),
        fused=fused,
        bias=keys.has("blk.0.ffn_up.bias"),
        down_bias=keys.has("blk.0.ffn_down.bias"),
    )
    mixer = two_way(keys, None, alibi=slopes(keys.size("attention.head_count")))
    return encoder(keys, (post_norm_layer(keys, mixer, ffn),) * keys.n_layer)


def read_v3(file: GGUF) -> ModelSpec:
    """The spec of a jina-bert-v3 file."""
    keys = Keys(file, "jina-bert-v3")
    refuse_experts(keys)
    rope = read_rope(file, keys.arch, head_size(file, keys.arch), "halves")
    ffn = Dense(keys.size("feed_forward_length"), "gelu_erf", gated=False, bias=keys.has("blk.0.ffn_up.bias"))
    return encoder(keys, (post_norm_layer(keys, two_way(keys, rope), ffn),) * keys.n_layer)


def slopes(n_head: int, most: float = MOST_ALIBI) -> tuple[float, ...]:
    """How much each head's scores fall with each position of distance: a geometric series.

    Where the number of heads is no power of two, those beyond it take every other slope of twice as many.

    >>> slopes(2)
    (0.0625, 0.00390625)
    """
    whole = 1 << int(log2(n_head))
    found = [2 ** (-most * (i + 1) / whole) for i in range(whole)]
    found += [2 ** (-most / 2 * (2 * i + 1) / whole) for i in range(n_head - whole)]
    return tuple(found)
