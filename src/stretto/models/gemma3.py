"""Gemma 3: five windowed layers to each global one, norms on both sides, scaled embeddings."""

from __future__ import annotations

from stretto.models.common import MAX_LAYERS, decoder, head_size, positive
from stretto.models.rope import plain_frequencies, read_base, read_rope
from stretto.models.spec import Layer, ModelSpec, Rope
from stretto.weights.gguf import GGUF

PERIOD = 6  # every sixth layer is global, unless the file says otherwise
LOCAL_BASE = 10_000.0  # of the rope in windowed layers
LAYERS_27B = 62  # the one size that scales attention by the embedding's share of a head


def read(file: GGUF) -> ModelSpec:
    """The spec of a gemma3 file."""
    size = head_size(file, "gemma3")
    n_embd = positive(file, "gemma3.embedding_length")
    n_layer = positive(file, "gemma3.block_count", most=MAX_LAYERS)
    wide = read_rope(file, "gemma3", size, "halves")
    base = read_base(file, "gemma3.rope.freq_base_swa", LOCAL_BASE)
    period = positive(file, "gemma3.attention.sliding_window_pattern", PERIOD)
    near = Layer(
        Rope(tuple(plain_frequencies(base, size).tolist()), "halves"),
        positive(file, "gemma3.attention.sliding_window"),
    )
    layers = tuple(Layer(wide) if i % period == period - 1 else near for i in range(n_layer))
    scale = size**-0.5
    if n_layer == LAYERS_27B:
        scale = (n_embd / positive(file, "gemma3.attention.head_count")) ** -0.5
    return decoder(
        file,
        "gemma3",
        wide,
        layers,
        activation="gelu",
        attention_scale=scale,
        embedding_scale=n_embd**0.5,
        qk_norm=True,
        post_norm=True,
    )
