"""MiniMax M2: q and k normalised as a whole, half a head rotated, a sigmoid with a bias for the choice."""

from __future__ import annotations

from stretto.models.common import (
    Keys,
    attention,
    gating,
    mixture,
    refuse_caps,
    routing,
    uniform_decoder,
    whole_norms,
)
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a minimax-m2 file."""
    refuse_caps(keys)
    choice = routing(keys, gating(keys, "sigmoid"), correction=True)
    mixer = attention(keys, "halves", **whole_norms(keys.eps))
    return uniform_decoder(keys, mixer, mixture(keys, choice))
