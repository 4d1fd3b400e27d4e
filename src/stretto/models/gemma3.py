"""Gemma 3: five windowed layers to each global one, norms on both sides, scaled embeddings."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys, attention, decoder, head_size, qk_norms, refuse_experts
from stretto.models.rope import plain_frequencies, read_base, read_rope
from stretto.models.spec import Dense, ModelSpec, Rope, sandwich
from stretto.weights.gguf import GGUF

PERIOD = 6  # every sixth layer is global, unless the file says otherwise
LOCAL_BASE = 10_000.0  # of the rope in windowed layers
LAYERS_27B = 62  # the one size that scales attention by the embedding's share of a head


def read(file: GGUF) -> ModelSpec:
    """The spec of a gemma3 file."""
    keys = Keys(file, "gemma3")
    return read_layers(keys, keys.size("attention.sliding_window"))


def read_layers(keys: Keys, window: int, causal: bool = True) -> ModelSpec:
    """The spec of a file with layers of this kind, and that window."""
    refuse_experts(keys)
    file, arch = keys.file, keys.arch
    size, n_embd, eps = head_size(file, arch), keys.n_embd, keys.eps
    scale = size**-0.5
    if keys.n_layer == LAYERS_27B:
        scale = (n_embd / keys.size("attention.head_count")) ** -0.5
    rope = read_rope(file, arch, size, "halves")
    wide = attention(keys, rope, scale=scale, causal=causal, **qk_norms(eps))
    base = read_base(file, f"{arch}.rope.freq_base_swa", LOCAL_BASE)
    local_rope = Rope(tuple(plain_frequencies(base, size).tolist()), "halves")
    near = replace(wide, rope=local_rope, window=window)
    period = keys.size("attention.sliding_window_pattern", PERIOD)
    ffn = Dense(keys.size("feed_forward_length"), "gelu")
    mixers = (wide if i % period == period - 1 else near for i in range(keys.n_layer))
    return decoder(keys, (sandwich(mixer, ffn, eps) for mixer in mixers), embedding_scale=n_embd**0.5)
