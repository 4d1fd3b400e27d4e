"""Norms, rotations and activations in NumPy, float32."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stretto.models.parts import Rope

Floats = NDArray[np.float32]

erf: Callable[[NDArray[np.float64]], NDArray[np.float64]] = np.vectorize(math.erf, otypes=[np.float64])


def rms_norm(x: Floats, weight: Floats | None, eps: float) -> Floats:
    """x divided by the root of its mean square, times `weight`."""
    root: Floats = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    return x / root if weight is None else x / root * weight


def layer_norm(x: Floats, weight: Floats | None, bias: Floats | None, eps: float) -> Floats:
    """x less its mean, divided by its standard deviation, times `weight`, plus `bias`."""
    x = rms_norm(x - np.mean(x, axis=-1, keepdims=True), weight, eps)
    return x if bias is None else x + bias


def rotate(x: Floats, positions: NDArray[np.integer], rope: Rope) -> Floats:
    """Apply RoPE: rotate the pairs of each head by their position: x [n, heads, size]."""
    angles = rope.angles(positions)[:, None, :]  # [n, 1, pairs]
    cos = (np.cos(angles) * rope.magnitude).astype(np.float32)
    sin = (np.sin(angles) * rope.magnitude).astype(np.float32)
    first, second = rope.sides
    a, b = x[..., first], x[..., second]
    out = x.copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def cap(x: Floats, most: float) -> Floats:
    """`most` × tanh(x / most), or x itself where there is no cap."""
    if not most:
        return x
    out: Floats = np.float32(most) * np.tanh(x / np.float32(most))
    return out


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^−x)."""
    with np.errstate(over="ignore"):  # exp(−x) may be infinite; the quotient is then 0, as it should be
        out: Floats = np.reciprocal(1 + np.exp(-x))
    return out


def softmax(x: Floats) -> Floats:
    """Along the last axis."""
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    out: Floats = x / x.sum(axis=-1, keepdims=True)
    return out


def silu(x: Floats) -> Floats:
    """x × sigmoid(x)."""
    with np.errstate(over="ignore"):
        out: Floats = x / (1 + np.exp(-x))
    return out


def softplus(x: Floats) -> Floats:
    """log(1 + e^x)."""
    return np.logaddexp(x, np.float32(0))


def gelu(x: Floats) -> Floats:
    """The tanh form of GELU."""
    cubed = x + np.float32(0.044715) * x * x * x
    out: Floats = np.float32(0.5) * x * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * cubed))
    return out


def gelu_erf(x: Floats) -> Floats:
    """GELU as it is defined: x times the probability that a standard normal number is below it."""
    out: Floats = (0.5 * x * (1.0 + erf(x.astype(np.float64) * 0.5**0.5))).astype(np.float32)
    return out


def relu2(x: Floats) -> Floats:
    """The square of what is above 0."""
    out: Floats = np.square(np.maximum(x, 0))
    return out


def tanh(x: Floats) -> Floats:
    """The hyperbolic tangent."""
    out: Floats = np.tanh(x)
    return out


ACTIVATIONS = {"silu": silu, "gelu": gelu, "relu2": relu2, "gelu_erf": gelu_erf, "tanh": tanh}
