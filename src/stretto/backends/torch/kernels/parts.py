"""How kernels take packed parts: their tensors and constants."""

import torch

from stretto.backends.torch.device import is_interpreting
from stretto.weights.formats import Format


def fastest(part, dtype):
    """How numbers become bfloat16: 0 as the interpreter can, 1 by PTX of ours, 2 two at a time (Q4_0)."""
    if is_interpreting():
        return 0
    return 2 if part.format is Format.Q4_0 and dtype == torch.bfloat16 else 1


def arguments(part):
    """The tensors of a packed part as kernels take them; what a format lacks is never read."""
    others = (part.high, part.scales, part.minima, part.supers)
    return (part.quants, *(part.quants if t is None else t for t in others))


def constants(part):
    """The constants of kernels for a packed part."""
    high = 0 if part.high is None else int(part.high.shape[-1])
    return {"FORMAT": part.layout.code, "STEP": part.layout.step, "HIGH": high}
