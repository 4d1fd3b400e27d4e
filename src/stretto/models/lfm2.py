"""LFM2: short convolutions, and attention with norms on each head's query and key."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.models.common import Keys, attention, decoder, dense, qk_norms, read_rope, refuse_experts
from stretto.models.feed_forward import FeedForward
from stretto.models.hybrids import kernel
from stretto.models.spec import Convolution, ModelSpec, Norm, plain_layer


def read(keys: Keys) -> ModelSpec:
    """The spec of an lfm2 file."""
    refuse_experts(keys)
    return convolutions(keys, [dense(keys)] * keys.n_layer)


def convolutions(keys: Keys, ffns: Iterable[FeedForward]) -> ModelSpec:
    """A model of convolutions, which attends in layers with K/V heads."""
    keys.refuse("attention.sliding_window", "a window")
    rope, norms = read_rope(keys, "halves"), qk_norms(keys.eps)
    convolution = Convolution(keys.n_embd, kernel(keys, "shortconv.l_cache"))
    heads = keys.sizes("attention.head_count_kv", least=0)
    mixers = (attention(keys, rope, n_kv_head=n, **norms) if n else convolution for n in heads)
    layers = (plain_layer(mixer, ffn, keys.eps) for mixer, ffn in zip(mixers, ffns, strict=True))
    # The norm before the output has the name of one after the embedding.
    return decoder(keys, layers, output_norm=Norm("token_embd_norm", keys.eps))
