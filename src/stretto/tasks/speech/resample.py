"""Changes sample rates, block by block, with a windowed sinc.

    convert = Resampler(44_100, 16_000)
    for block in blocks: convert.feed(block)
    convert.flush()

Frequencies that the lower of both rates cannot hold are removed; the result does not depend on how the sound
was cut into blocks.
"""

from __future__ import annotations

from math import ceil, gcd

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

_ZERO_CROSSINGS = 32  # on each side of the sinc
_ROLL_OFF = 0.95  # share of the lower rate's band that is kept
_KAISER_BETA = 12.0  # 110 dB
_BLOCK_OUTPUTS = 1024
_TABLE_PHASES = 1024


class Resampler:
    """Takes samples of one rate and returns those of another."""

    def __init__(self, rate: int, target: int) -> None:
        common = gcd(rate, target)
        self._up, self._down = target // common, rate // common
        self._cutoff = _ROLL_OFF * min(1.0, target / rate)
        self._half = ceil(_ZERO_CROSSINGS / self._cutoff)
        # Weights repeat after `up` outputs; those of unusual rates are too many to keep.
        self._table = self._sinc(np.arange(self._up)) if self._up <= _TABLE_PHASES else None
        self._held = np.zeros(self._half - 1, np.float32)  # the first output lies on the first sample
        self._made = 0  # outputs so far
        self._dropped = 0  # inputs that are no longer held
        self._taken = 0

    def feed(self, samples: Samples) -> Samples:
        """The outputs that these samples complete."""
        if self._up == self._down:
            return samples
        self._taken += len(samples)
        self._held = np.concatenate((self._held, samples))
        # An output at input time t needs the samples up to floor(t) + half.
        last = self._dropped + len(self._held) - 2 * self._half
        return self._outputs(max(0, (last * self._up + self._up - 1) // self._down + 1) if last >= 0 else 0)

    def flush(self) -> Samples:
        """The outputs that are left, as if silence followed; the sound is over then."""
        if self._up == self._down:
            return np.zeros(0, np.float32)
        total = ceil(self._taken * self._up / self._down)
        self._held = np.concatenate((self._held, np.zeros(2 * self._half, np.float32)))
        return self._outputs(total)

    def _outputs(self, end: int) -> Samples:
        """The outputs from those already made to `end`."""
        pieces = [np.zeros(0, np.float32)]
        while self._made < end:
            stop = min(end, self._made + _BLOCK_OUTPUTS)
            pieces.append(self._piece(np.arange(self._made, stop, dtype=np.int64)))
            self._made = stop
        needed = self._made * self._down // self._up
        if needed > self._dropped:
            self._held = self._held[needed - self._dropped :]
            self._dropped = needed
        return np.concatenate(pieces)

    def _piece(self, numbers: NDArray[np.int64]) -> Samples:
        first, phase = np.divmod(numbers * self._down, self._up)
        windows = np.lib.stride_tricks.sliding_window_view(self._held, 2 * self._half)
        weights = self._sinc(phase) if self._table is None else self._table[phase]
        made: Samples = np.einsum("nk,nk->n", windows[first - self._dropped], weights)
        return made

    def _sinc(self, phase: NDArray[np.int64]) -> Samples:
        """float32[n, 2 × half]: weights of the samples around an output `phase` / up after a sample."""
        distance = np.arange(-self._half + 1, self._half + 1) - phase[:, None] / self._up
        window = np.i0(_KAISER_BETA * np.sqrt(np.clip(1 - (distance / self._half) ** 2, 0, 1)))
        sinc = self._cutoff * np.sinc(self._cutoff * distance) * window / np.i0(_KAISER_BETA)
        return sinc.astype(np.float32)
