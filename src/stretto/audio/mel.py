"""What models hear: the logarithm of a mel spectrogram, as Whisper's authors compute it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stretto.audio.sound import RATE, Samples

Floats = NDArray[np.float32]

WINDOW_SECONDS = 30
_FFT, HOP = 400, 160
FRAMES = WINDOW_SECONDS * RATE // HOP


@lru_cache
def mel_filters(count: int) -> Floats:
    """float32[count, 201]: triangles over frequencies, evenly spaced on Slaney's mel scale, of equal area."""

    def to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))

    most = 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4)
    edges = to_hertz(np.linspace(0, most, count + 2))
    bins = np.fft.rfftfreq(_FFT, 1 / RATE)
    slopes = (bins[None] - edges[:, None]) / np.maximum(np.diff(edges, append=np.inf), 1e-9)[:, None]
    rising, falling = slopes[:-2], 1 - slopes[1:-1]
    triangles = np.maximum(0, np.minimum(rising, falling))
    made: Floats = (triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)
    return made


def log_mel(samples: Samples, count: int, n_frames: int = FRAMES) -> Floats:
    """float32[count, n_frames] of at most so much sound, 30 seconds by default, with silence behind it."""
    padded = np.zeros(n_frames * HOP, np.float32)
    padded[: len(samples)] = samples[: len(padded)]
    return _log_mels(np.pad(padded, _FFT // 2, mode="reflect"), count)


def log_mels(samples: Samples, count: int) -> Floats:
    """float32[count, n] of a sound of any length, with silence behind it: a column each 10 ms."""
    around = np.pad(samples, (_FFT // 2, 0), mode="reflect")
    return _log_mels(np.pad(around, (0, _FFT // 2)), count)


def _log_mels(around: Samples, count: int) -> Floats:
    """float32[count, n] of samples with half a frame more at both ends."""
    frames = np.lib.stride_tricks.sliding_window_view(around, _FFT)[::HOP]
    frames = frames[: (len(around) - _FFT) // HOP]
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FFT) / _FFT)).astype(np.float32)
    mels = np.empty((count, len(frames)), np.float32)
    for start in range(0, len(frames), FRAMES):
        power = np.abs(np.fft.rfft(frames[start : start + FRAMES] * window, axis=1)) ** 2
        heard = mel_filters(count) @ power.T.astype(np.float32)
        mels[:, start : start + FRAMES] = np.log10(np.maximum(heard, 1e-10))
    made: Floats = ((np.maximum(mels, mels.max(initial=-10) - 8) + 4) / 4).astype(np.float32)
    return made
