"""Apertus: q and k normalised, and xIELU without a gate, whose numbers each layer has."""

from __future__ import annotations

from math import exp, log1p

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Dense, ModelSpec, plain_layer

MOST = 100.0


def read(keys: Keys) -> ModelSpec:
    """The spec of an apertus file."""
    common.refuse_experts(keys)
    mixer = common.attention(keys, "halves", **common.attention_biases(keys), **common.qk_norms(keys.eps))
    n_ff, biased = keys.size("feed_forward_length"), keys.has("blk.0.ffn_up.bias")
    numbers = (_numbers(keys, f"xielu.{name}") for name in ("alpha_p", "alpha_n", "beta", "eps"))
    ffns = [
        Dense(n_ff, "xielu", gated=False, bias=biased, xielu=(_softplus(p), beta + _softplus(n), beta, eps))
        for p, n, beta, eps in zip(*numbers, strict=True)
    ]
    return common.decoder(keys, (plain_layer(mixer, ffn, keys.eps) for ffn in ffns))


def _numbers(keys: Keys, name: str) -> list[float]:
    """A number for each layer, under a key without the architecture: an array of them, or one for all."""
    metadata = keys.file.metadata
    if isinstance(metadata.get(name), (int, float)):
        values = [metadata.number(name)] * keys.n_block
    else:
        values = [float(value) for value in metadata.array(name).tolist()]
    if len(values) != keys.n_block or not all(abs(value) < MOST for value in values):
        raise keys.file.error(name, f"{keys.n_block} numbers below {MOST:g} are needed, one for each layer")
    return values[: keys.n_layer]


def _softplus(x: float) -> float:
    """log(1 + e^x): files have the numbers as they were trained."""
    return max(x, 0.0) + log1p(exp(-abs(x)))
