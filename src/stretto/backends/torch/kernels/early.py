"""Kernels that are launched before the one before them has ended, and wait for its results."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import triton
import triton.language as tl

from stretto.backends.torch.device import is_hopper_or_newer, is_interpreting

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    HAS_PDL = True
except ImportError:  # before Triton 3.4
    HAS_PDL = False


@triton.jit
def await_inputs(EARLY: tl.constexpr):
    """Let the next kernel be launched, and wait until the one before has ended."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@lru_cache(maxsize=8)
def early_options(device: Any) -> dict[str, bool]:
    """Options of a launch: EARLY, and Triton's own where the device can launch kernels early."""
    if not HAS_PDL or is_interpreting() or not is_hopper_or_newer(device):
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}
