"""gpt-oss: every other layer has a window, heads have sinks, experts a clamped SwiGLU with biases."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys, attention, decoder, head_size, mixture, refuse_caps, routing
from stretto.models.rope import magnitude, read_frequencies
from stretto.models.spec import Layer, ModelSpec, Norm, Rope
from stretto.weights.gguf import GGUF

PERIOD = 2  # every second layer is global; files do not say it
LIMIT, ALPHA = 7.0, 1.702  # of the SwiGLU; nor these


def read(file: GGUF) -> ModelSpec:
    """The spec of a gpt-oss file."""
    keys = Keys(file, "gpt-oss")
    refuse_caps(keys)
    # OpenAI's code does not round the ends of the ramp between plain and scaled frequencies.
    frequencies, factor = read_frequencies(keys, head_size(file, "gpt-oss"), whole=False)
    rope = Rope(tuple(frequencies.tolist()), "halves", magnitude(factor))
    wide = attention(keys, rope, bias=True, output_bias=True, sinks=True)
    near = replace(wide, window=keys.size("attention.sliding_window"))
    choice = routing(keys, "chosen", normalize=False, bias=True)
    ffn = mixture(keys, choice, bias=True, limit=LIMIT, alpha=ALPHA)
    norms = Norm("attn_norm", keys.eps), Norm("post_attention_norm", keys.eps)
    mixers = (wide if i % PERIOD == PERIOD - 1 else near for i in range(keys.n_layer))
    return decoder(keys, (Layer(mixer, ffn, *norms) for mixer in mixers))
