"""SmallThinker: routers read the row before attention, and experts have ReLU gates."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec, plain_layer

PERIOD = 4  # the first of every four layers is global and has no rope, in models with windows


def read(keys: Keys) -> ModelSpec:
    """The spec of a smallthinker file."""
    common.refuse_caps(keys)
    rotated = common.attention(keys, "halves", **common.attention_biases(keys))
    mixers = [rotated] * keys.n_layer
    if window := keys.count("attention.sliding_window"):
        near, wide = replace(rotated, window=window), common.remove_rope(rotated)
        mixers = [near if narrow else wide for narrow in windowed(keys)]
    choice = common.routing(keys, common.gating(keys, "softmax"), early=True)
    ffn = common.mixture(keys, choice, activation="relu")
    return common.decoder(keys, (plain_layer(mixer, ffn, keys.eps) for mixer in mixers))


def windowed(keys: Keys) -> list[bool]:
    """For each layer, whether it has a window: all but every fourth from the first on, unless the file lists
    them."""
    if common.PATTERN in keys and not isinstance(keys.file.metadata[keys.key(common.PATTERN)], int):
        return keys.flags(common.PATTERN)
    period = keys.size(common.PATTERN, PERIOD)
    return [i % period > 0 for i in range(keys.n_layer)]
