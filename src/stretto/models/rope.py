"""Rotary frequencies with the scalings that models come with: none, linear, Llama 3's, YaRN, LongRoPE."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor, log, pi

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.models.common import Keys, positive, refuse
from stretto.models.parts import ByLength, Rope
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
    size, base = _read_size(file, arch, head_size), read_base(file, f"{arch}.rope.freq_base")
    frequencies = plain_frequencies(base, size)
    # Llama 3 stores the divisors of its frequencies as a tensor.
    if "rope_freqs.weight" in file.tensors:
        frequencies = frequencies / _read_divisors(file, "rope_freqs.weight", size // 2)
    scaled, magnitude = _scaled(file, arch, frequencies, base)
    rope = Rope(_tuple(scaled), "halves" if pairs == "halves" else "adjacent", magnitude)
    kind = file.metadata.text(f"{arch}.rope.scaling.type", "")
    if kind == "longrope" or "rope_factors_long.weight" in file.tensors:
        long = _tuple(scaled / _read_divisors(file, "rope_factors_long.weight", size // 2))
        short = _tuple(scaled / _read_divisors(file, "rope_factors_short.weight", size // 2))
        length = positive(file, f"{arch}.rope.scaling.original_context_length")
        rope = replace(rope, by_length=ByLength(length, short, long))
    return rope.within(positive(file, f"{arch}.context_length"))


def read_plain_rope(file: GGUF, arch: str, head_size: int, pairs: Pairs) -> Rope:
    """The rope of layers that a model's scaling is not for."""
    size, base = _read_size(file, arch, head_size), read_base(file, f"{arch}.rope.freq_base")
    return Rope(_tuple(plain_frequencies(base, size)), "halves" if pairs == "halves" else "adjacent")


def _tuple(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(values.tolist())


def _read_size(file: GGUF, arch: str, head_size: int) -> int:
    """How many numbers of a head are rotated."""
    size = file.metadata.integer(f"{arch}.rope.dimension_count", head_size)
    if not 2 <= size <= head_size or size % 2:
        raise ModelError(
            f"{size} rotated numbers in heads of {head_size}; an even number up to that is needed",
            path=file.path,
            field=f"{arch}.rope.dimension_count",
        )
    return size


def _read_divisors(file: GGUF, name: str, n: int) -> NDArray[np.float64]:
    """A tensor of what each frequency is divided by."""
    if name not in file.tensors:
        raise ModelError("the tensor is missing; is the file complete?", path=file.path, field=name)
    tensor = file.tensors[name]
    factors = tensor.dequantize().astype(np.float64) if tensor.shape == (n,) else None
    if factors is None or not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelError(
            f"{n} positive factors are needed, found shape {tensor.shape}",
            path=file.path,
            field=f"tensor {name!r}",
        )
    return factors


def _scaled(
    file: GGUF, arch: str, frequencies: NDArray[np.float64], base: float
) -> tuple[NDArray[np.float64], float]:
    """The frequencies with the scaling of the metadata, and the magnitude that belongs to it."""
    meta, key = file.metadata, f"{arch}.rope.scaling"
    # Files from before 2024 have only a linear scale, under a name of its own.
    kind = meta.text(f"{key}.type", "linear")
    factor = _factor(file, f"{key}.factor", _factor(file, f"{arch}.rope.scale_linear", 1.0))
    magnitude = _factor(file, f"{key}.attn_factor", 1.0)
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "yarn":
        refuse(file, f"{key}.yarn_ext_factor", "an extrapolation factor", harmless=1.0)
        original = positive(file, f"{key}.original_context_length", positive(file, f"{arch}.context_length"))
        fast = _factor(file, f"{key}.yarn_beta_fast", 32.0)
        slow = _factor(file, f"{key}.yarn_beta_slow", 1.0)
        frequencies = yarn(frequencies, base, factor, original, fast, slow)
        magnitude *= _yarn_magnitude(file, key, factor)
    elif kind not in ("none", "longrope"):  # the factors of the latter are tensors
        raise ModelError(
            f"rope scaling {kind!r} is not supported; supported are none, linear, yarn, longrope, Llama 3's",
            path=file.path,
            field=f"{key}.type",
        )
    return frequencies, magnitude


def _yarn_magnitude(file: GGUF, key: str, factor: float) -> float:
    """How much longer YaRN makes queries and keys: by its own formula, divided, or as given."""
    usual = 0.1 * log(max(factor, 1.0)) + 1.0
    given = _factor(file, f"{key}.yarn_attn_factor", 1.0)
    if given != 1.0:  # which is what tools write for "as usual"
        return given
    divisor = file.metadata.number(f"{key}.yarn_log_multiplier", 0.0)
    if not 0.0 <= divisor <= 1e3:
        raise ModelError(f"{divisor}", path=file.path, field=f"{key}.yarn_log_multiplier")
    return usual / (0.1 * divisor * log(max(factor, 1.0)) + 1.0)


def _factor(file: GGUF, key: str, default: float) -> float:
    value = file.metadata.number(key, default)
    if not 1e-6 <= value <= 1e6:
        raise ModelError(f"{value}, but 1e-6 to 1e6 is possible", path=file.path, field=key)
    return value


def yarn(
    frequencies: NDArray[np.float64],
    base: float,
    factor: float,
    original: int,
    fast: float,
    slow: float,
    whole: bool = True,
) -> NDArray[np.float64]:
    """Keep the frequencies that rotate often within the original context, stretch the others.

    Pairs that rotate more than `fast` times keep their frequency, those under `slow` times are divided by
    `factor`, and a linear ramp joins the two: between whole pairs if `whole`.
    """
    size = 2 * len(frequencies)

    def pair_turning(times: float) -> float:
        return size * log(original / (times * 2 * pi)) / (2 * log(base))

    low, high = pair_turning(fast), pair_turning(slow)
    if whole:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(frequencies)) - low) / max(high - low, 0.001), 0.0, 1.0)
    stretched: NDArray[np.float64] = frequencies * (1 - ramp) + frequencies / factor * ramp
    return stretched


# YaRN as gpt-oss and DeepSeek have it: with a ramp or a magnitude of their own.


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
