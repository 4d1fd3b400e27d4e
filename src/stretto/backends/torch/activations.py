"""Activations of products: their names, and what they are in plain torch, float32."""

from __future__ import annotations

import math

import torch

from stretto.backends.torch.device import Tensor
from stretto.errors import Unsupported

CODES = {"": 0, "silu": 1, "gelu": 2, "relu2": 3, "gelu_erf": 4, "tanh": 5, "clamped": 6, "relu": 7}


def code(name: str) -> int:
    """The number by which kernels know an activation."""
    if name not in CODES:
        raise Unsupported(f"activation {name!r} is not known to this backend", param="activation", value=name)
    return CODES[name]


def activate(name: str, x: Tensor) -> Tensor:
    """The activation of float32 numbers."""
    if code(name) == 0:
        return x
    if name == "silu":
        return x / (1 + torch.exp(-x))
    if name == "gelu":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    if name == "relu2":
        return torch.relu(x).square()
    if name == "relu":
        return torch.relu(x)
    if name == "gelu_erf":
        return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
    return torch.tanh(x)


def xielu(x: Tensor, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Tensor:
    """A parabola above 0, and what bends towards a line below."""
    return torch.where(x > 0, alpha_p * x * x, alpha_n * (torch.expm1(x.clamp(max=eps)) - x)) + beta * x


def gate(name: str, gates: Tensor, ups: Tensor, clamp: tuple[float, float] | None = None) -> Tensor:
    """activation(gates) × ups, or with clamp = (limit, alpha) the clamped SwiGLU."""
    if clamp is None:
        return activate(name, gates) * ups
    limit, alpha = clamp
    gates, ups = gates.clamp(max=limit), ups.clamp(-limit, limit)
    return gates / (1 + torch.exp(-alpha * gates)) * (ups + 1)
