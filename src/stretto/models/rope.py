"""Rotary frequencies with the scalings that models come with: none, linear, Llama 3's, YaRN."""

from __future__ import annotations

from math import ceil, floor, log, pi

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.models.common import positive, refuse
from stretto.models.parts import Rope
from stretto.weights.gguf import GGUF

Pairs = str


def plain_frequencies(base: float, size: int) -> NDArray[np.float64]:
    """base^(−2i/size) for each pair i."""
    return base ** (-np.arange(0, size, 2, dtype=np.float64) / size)


def read_base(file: GGUF, key: str, default: float = 10_000.0) -> float:
    """The base of a rope's frequencies."""
    base = file.metadata.number(key, default)
    if not 1.0 < base < 1e12:
        raise ModelError(f"a base of {base}", path=file.path, field=key)
    return base


def read_rope(file: GGUF, arch: str, head_size: int, pairs: Pairs) -> Rope:
    """The rope of a model's (global) layers, from its metadata."""
    size = file.metadata.integer(f"{arch}.rope.dimension_count", head_size)
    base = read_base(file, f"{arch}.rope.freq_base")
    if not 2 <= size <= head_size or size % 2:
        raise ModelError(
            f"{size} rotated numbers in heads of {head_size}; an even number up to that is needed",
            path=file.path,
            field=f"{arch}.rope.dimension_count",
        )
    frequencies = plain_frequencies(base, size)
    # Llama 3 stores the divisors of its frequencies as a tensor.
    if "rope_freqs.weight" in file.tensors:
        tensor = file.tensors["rope_freqs.weight"]
        factors = tensor.dequantize().astype(np.float64) if tensor.shape == frequencies.shape else None
        if factors is None or not (np.isfinite(factors) & (factors > 0)).all():
            raise ModelError(
                f"{size // 2} positive factors are needed, found shape {tensor.shape}",
                path=file.path,
                field="tensor 'rope_freqs.weight'",
            )
        frequencies = frequencies / factors
    return _scaled(file, arch, frequencies, base, pairs)


def _scaled(file: GGUF, arch: str, frequencies: NDArray[np.float64], base: float, pairs: Pairs) -> Rope:
    meta, key = file.metadata, f"{arch}.rope.scaling"
    # Files from before 2024 have only a linear scale, under a name of its own.
    kind = meta.text(f"{key}.type", "linear")
    factor = _factor(file, f"{key}.factor", _factor(file, f"{arch}.rope.scale_linear", 1.0))
    magnitude = _factor(file, f"{key}.attn_factor", 1.0)
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "yarn":
        refuse(file, f"{key}.yarn_ext_factor", "an extrapolation factor", harmless=1.0)
        refuse(file, f"{key}.yarn_attn_factor", "a magnitude of its own", harmless=1.0)
        refuse(file, f"{key}.yarn_log_multiplier", "a magnitude of its own")
        original = positive(file, f"{key}.original_context_length", positive(file, f"{arch}.context_length"))
        fast = _factor(file, f"{key}.yarn_beta_fast", 32.0)
        slow = _factor(file, f"{key}.yarn_beta_slow", 1.0)
        frequencies = yarn(frequencies, base, factor, original, fast, slow)
        magnitude *= 0.1 * log(max(factor, 1.0)) + 1.0
    elif kind != "none":
        raise ModelError(
            f"rope scaling {kind!r} is not supported; supported are none, linear, yarn and Llama 3's",
            path=file.path,
            field=f"{key}.type",
        )
    return Rope(tuple(frequencies.tolist()), "halves" if pairs == "halves" else "adjacent", magnitude)


def _factor(file: GGUF, key: str, default: float) -> float:
    value = file.metadata.number(key, default)
    if not 1e-6 <= value <= 1e6:
        raise ModelError(f"{value}, but 1e-6 to 1e6 is possible", path=file.path, field=key)
    return value


def yarn(
    frequencies: NDArray[np.float64], base: float, factor: float, original: int, fast: float, slow: float
) -> NDArray[np.float64]:
    """Keep the frequencies that rotate often within the original context, stretch the others.

    Pairs that rotate more than `fast` times keep their frequency, those under `slow` times are divided by
    `factor`, and a linear ramp joins the two.
    """
    size = 2 * len(frequencies)

    def pair_turning(times: float) -> float:
        return size * log(original / (times * 2 * pi)) / (2 * log(base))

    low = max(floor(pair_turning(fast)), 0)
    high = min(ceil(pair_turning(slow)), size - 1)
    ramp = np.clip((np.arange(len(frequencies)) - low) / max(high - low, 0.001), 0.0, 1.0)
    return frequencies * (1 - ramp) + frequencies / factor * ramp
