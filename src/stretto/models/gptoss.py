"""gpt-oss: every other layer has a window, heads have sinks, experts a clamped SwiGLU with biases."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.rope import magnitude
from stretto.models.spec import Layer, ModelSpec, Norm, Rope

PERIOD = 2  # every second layer is global; files do not say it
LIMIT, ALPHA = 7.0, 1.702  # of the SwiGLU; nor these


def read(keys: Keys) -> ModelSpec:
    """The spec of a gpt-oss file."""
    common.refuse_caps(keys)
    # OpenAI's code does not round the ends of the ramp between plain and scaled frequencies.
    frequencies, factor = common.read_frequencies(keys, common.head_size(keys), whole=False)
    rope = Rope(frequencies, "halves", magnitude(factor))
    wide = common.attention(keys, rope, bias=True, output_bias=True, sinks=True)
    near = replace(wide, window=keys.size("attention.sliding_window"))
    choice = common.routing(keys, "chosen", normalize=False, bias=True)
    ffn = common.mixture(keys, choice, bias=True, limit=LIMIT, alpha=ALPHA)
    norms = Norm("attn_norm", keys.eps), Norm("post_attention_norm", keys.eps)
    mixers = (wide if i % PERIOD == PERIOD - 1 else near for i in range(keys.n_layer))
    return common.decoder(keys, (Layer(mixer, ffn, *norms) for mixer in mixers))
