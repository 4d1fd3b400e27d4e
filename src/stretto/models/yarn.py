"""YaRN as gpt-oss and DeepSeek have it: with a ramp or a magnitude of their own."""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.models.common import Keys
from stretto.models.rope import plain_frequencies, read_base, yarn


def read_frequencies(keys: Keys, size: int, whole: bool = True) -> tuple[NDArray[np.float64], float]:
    """The frequencies of `size` rotated numbers, and the factor that some are stretched by, or 1.

    `whole`: the ramp between plain and stretched frequencies begins and ends at whole pairs.
    """
    base = read_base(keys.file, f"{keys.arch}.rope.freq_base")
    frequencies = plain_frequencies(base, size)
    kind = keys.file.metadata.text(f"{keys.arch}.rope.scaling.type", "none")
    if kind == "none":
        return frequencies, 1.0
    if kind != "yarn":
        raise ModelError(
            f"rope scaling {kind!r} is not supported for this architecture; supported are none and yarn",
            path=keys.file.path,
            field=f"{keys.arch}.rope.scaling.type",
        )
    keys.refuse("rope.scaling.yarn_ext_factor", "an extrapolation factor", harmless=1.0)
    keys.refuse("rope.scaling.yarn_attn_factor", "a magnitude of its own", harmless=1.0)
    factor = keys.number("rope.scaling.factor", 1.0, 1.0, 1e6)
    original = keys.size("rope.scaling.original_context_length", keys.size("context_length"))
    fast = keys.number("rope.scaling.yarn_beta_fast", 32.0, 1e-6, 1e6)
    slow = keys.number("rope.scaling.yarn_beta_slow", 1.0, 1e-6, 1e6)
    return yarn(frequencies, base, factor, original, fast, slow, whole), factor


def magnitude(factor: float, multiplier: float = 0.1) -> float:
    """How much longer queries and keys become, by the factor that their frequencies are stretched by."""
    return 1.0 + multiplier * log(factor)
