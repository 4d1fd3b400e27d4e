"""`Audio`: a sound for a prompt, from a file, bytes, a URL or samples, under a limit on its length.

    stretto.Audio.open("question.wav")
    stretto.Audio.open(samples, sample_rate=44_100)        # float32[n]
    stretto.Audio.open("data:audio/wav;base64,UklGR…")

Files are not trusted, and read block by block: no more than the limit is ever in memory.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np

from stretto.audio.sound import RATE, SOURCES, Samples, open_sound
from stretto.errors import InvalidRequest

MAX_SECONDS = 1800.0  # of one sound
MAX_URL_BYTES = 64 << 20  # of a data: URL


class Audio:
    """A sound: `samples` are float32[n] at 16 kHz. Make one with `Audio.open`."""

    def __init__(self, samples: Samples) -> None:
        is_array = isinstance(samples, np.ndarray) and samples.dtype == np.float32 and samples.ndim == 1
        if not is_array or not samples.size:
            raise InvalidRequest(
                "the samples of a sound are float32[n], at least one; use Audio.open", param="audio"
            )
        self.samples = samples

    @classmethod
    def open(cls, source: Any, *, sample_rate: int | None = None, max_seconds: float = MAX_SECONDS) -> Audio:
        """Open the sound in a path, bytes of a file, a `data:` URL, an array or chunks of samples.

        Channels are mixed, and other rates converted; samples need `sample_rate`. Raises `InvalidRequest` for
        anything else, and for a sound of more than `max_seconds`.

        >>> stretto.Audio.open("question.wav").seconds
        2.5
        """
        if isinstance(source, Audio):
            return source
        if isinstance(source, str) and source[:5].lower() == "data:":
            source = _decode_url(source)
        blocks, n = [np.zeros(0, np.float32)], 0
        for block in open_sound(source, sample_rate).at_16_khz():
            blocks.append(block)
            n += len(block)
            if n > max_seconds * RATE:
                raise InvalidRequest(
                    f"the sound lasts more than {max_seconds:,g} seconds; cut it", param="audio"
                )
        if not n:
            raise InvalidRequest(f"the sound has no samples; give {SOURCES}", param="audio")
        return cls(np.concatenate(blocks))

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self.samples) / RATE

    def __repr__(self) -> str:
        return f"<Audio of {self.seconds:.1f} s>"


def _decode_url(url: str) -> bytes:
    if len(url) > 2 * MAX_URL_BYTES:
        raise InvalidRequest(
            f"a data: URL of {len(url):,} characters; at most {2 * MAX_URL_BYTES:,} are read", param="audio"
        )
    head, comma, body = url.partition(",")
    if not comma:
        raise InvalidRequest("a data: URL is data:audio/wav;base64,…; the comma is missing", param="audio")
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(body)
    return decode_base64(unquote_to_bytes(body))


def decode_base64(text: str | bytes) -> bytes:
    """The bytes of a file, as requests carry them."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"the sound is not base64: {error}", param="audio") from None
