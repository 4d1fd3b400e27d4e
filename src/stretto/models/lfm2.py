"""LFM2: short convolutions, and attention with norms on each head's query and key."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.models.common import Keys, attention, decoder, head_size, qk_norms, refuse_experts
from stretto.models.hybrids import kernel
from stretto.models.rope import read_rope
from stretto.models.spec import Convolution, Dense, Experts, ModelSpec, Norm, plain_layer
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of an lfm2 file."""
    keys = Keys(file, "lfm2")
    refuse_experts(keys)
    return convolutions(keys, [Dense(keys.size("feed_forward_length"))] * keys.n_layer)


def convolutions(keys: Keys, ffns: Iterable[Dense | Experts]) -> ModelSpec:
    """A model of convolutions, which attends in layers with K/V heads."""
    keys.refuse("attention.sliding_window", "a window")
    rope = read_rope(keys.file, keys.arch, head_size(keys.file, keys.arch), "halves")
    convolution = Convolution(keys.n_embd, kernel(keys, "shortconv.l_cache"))
    heads = keys.sizes("attention.head_count_kv", least=0)
    layers = (
        plain_layer(
            attention(keys, rope, n_kv_head=n, **qk_norms(keys.eps)) if n else convolution, ffn, keys.eps
        )
        for n, ffn in zip(heads, ffns, strict=True)
    )
    # The norm before the output has the name of one after the embedding.
    return decoder(keys, layers, output_norm=Norm("token_embd_norm", keys.eps))
