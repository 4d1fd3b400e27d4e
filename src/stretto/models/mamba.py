"""Mamba's first version alone, and Falcon Mamba: the memory of a sequence does not grow with it."""

from __future__ import annotations

from stretto.models.common import Keys, decoder
from stretto.models.hybrids import mamba
from stretto.models.spec import Layer, ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a mamba file."""
    # Falcon Mamba normalises steps, B and C without weights; llama.cpp with the epsilon of the other norms.
    eps = keys.number("ssm.norm_epsilon", keys.eps, 0.0, 1.0)
    norms = (lambda name: Norm(name, eps, weight=False)) if keys.flag("ssm.dt_b_c_rms", False) else None
    layer = Layer(mamba(keys, norms), None, Norm("attn_norm", keys.eps), None)
    return decoder(keys, (layer,) * keys.n_layer)
