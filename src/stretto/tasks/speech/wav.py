"""Reads WAV files block by block: PCM of 8, 16, 24 and 32 bits and floats, with any number of channels.

    sound = open_wav(file, "speech.wav")
    for block in sound.blocks(): ...         # float32[n], channels mixed, from -1 to 1

Files are not trusted: what the header says is compared with the file's size before anything is read, and no
more than a block is in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest

Samples = NDArray[np.float32]

MIN_RATE, MAX_RATE = 1_000, 192_000
MAX_CHANNELS = 64
MAX_SECONDS = 4 * 3600
BLOCK_SECONDS = 4
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # of recordings that were written to a pipe
_MAX_CHUNKS = 1_000


def _pcm_8(data: bytes) -> Samples:
    return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)


def _pcm_16(data: bytes) -> Samples:
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(2**15)


def _pcm_24(data: bytes) -> Samples:
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return (wide.view("<i4")[:, 0] / 2**31).astype(np.float32)


def _pcm_32(data: bytes) -> Samples:
    return (np.frombuffer(data, "<i4") / 2**31).astype(np.float32)


def _float_32(data: bytes) -> Samples:
    return np.frombuffer(data, "<f4").astype(np.float32)


def _float_64(data: bytes) -> Samples:
    return np.frombuffer(data, "<f8").astype(np.float32)


DECODERS: dict[tuple[int, int], Callable[[bytes], Samples]] = {
    (_PCM, 8): _pcm_8,
    (_PCM, 16): _pcm_16,
    (_PCM, 24): _pcm_24,
    (_PCM, 32): _pcm_32,
    (_FLOAT, 32): _float_32,
    (_FLOAT, 64): _float_64,
}


@dataclass(frozen=True)
class Wav:
    """An opened file: its format, and where its samples are."""

    name: str
    file: BinaryIO
    rate: int
    channels: int
    kind: tuple[int, int]  # tag and bits
    offset: int
    frames: int

    def blocks(self) -> Iterator[Samples]:
        """The samples, float32[n] each, the mean over the channels."""
        width = self.channels * self.kind[1] // 8
        self.file.seek(self.offset)
        left = self.frames
        while left:
            count = min(left, BLOCK_SECONDS * self.rate)
            data = self.file.read(count * width)
            if len(data) != count * width:
                raise _wrong(self.name, "it became shorter while it was read")
            samples = DECODERS[self.kind](data).reshape(-1, self.channels)
            yield samples[:, 0] if self.channels == 1 else samples.mean(axis=1, dtype=np.float32)
            left -= count


def open_wav(file: BinaryIO, name: str) -> Wav:
    """Read the headers of a WAV file; `InvalidRequest` says what is wrong with it."""
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(12)
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
        raise _wrong(name, "it is no WAV file")
    form: tuple[int, int, int, int] | None = None  # tag, channels, rate, bits
    offset = 12
    for _ in range(_MAX_CHUNKS):
        file.seek(offset)
        head = file.read(8)
        if len(head) < 8:
            break
        length = int.from_bytes(head[4:], "little")
        if head[:4] == b"fmt ":
            form = _read_form(file.read(min(length, 40)), name)
        elif head[:4] == b"data":
            if form is None:
                raise _wrong(name, "the samples come before their format (fmt)")
            return _checked(file, name, form, offset + 8, length, size)
        offset += 8 + length + length % 2
    raise _wrong(name, "there are no samples in it (no data chunk)")


def _read_form(data: bytes, name: str) -> tuple[int, int, int, int]:
    if len(data) < 16:
        raise _wrong(name, f"its format (fmt) has {len(data)} bytes instead of 16 or more")
    tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", data)
    if tag == _EXTENSIBLE and len(data) >= 26:
        tag = int.from_bytes(data[24:26], "little")
    if (tag, bits) not in DECODERS:
        raise _wrong(name, f"format {tag} with {bits} bits is not supported; convert it to 16-bit PCM")
    if not 1 <= channels <= MAX_CHANNELS:
        raise _wrong(name, f"it has {channels} channels; 1 to {MAX_CHANNELS} are supported")
    if align != channels * bits // 8:
        raise _wrong(name, f"{channels} channels of {bits} bits in {align} bytes")
    check_rate(rate, name)
    return tag, channels, rate, bits


def _checked(
    file: BinaryIO, name: str, form: tuple[int, int, int, int], offset: int, length: int, size: int
) -> Wav:
    tag, channels, rate, bits = form
    present = size - offset
    if length in _UNKNOWN_SIZES:
        length = present
    if length > present:
        raise _wrong(name, f"it ends after {present} of {length} bytes of samples")
    frames = length // (channels * bits // 8)
    check_seconds(frames / rate, name)
    return Wav(name, file, rate, channels, (tag, bits), offset, frames)


def check_rate(rate: int, name: str) -> None:
    """Raise unless a sample rate is one that is supported."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise _wrong(name, f"{rate} samples a second; {MIN_RATE:,} to {MAX_RATE:,} are supported")


def check_seconds(seconds: float, name: str) -> None:
    """Raise if a sound is longer than is supported."""
    if seconds > MAX_SECONDS:
        raise _wrong(name, f"it lasts {seconds:,.0f} seconds; at most {MAX_SECONDS:,} are supported; cut it")


def _wrong(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"audio {name}: {what}", param="audio")
