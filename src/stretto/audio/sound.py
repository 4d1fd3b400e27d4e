"""`open_sound`: blocks of samples from a path, bytes of a file, an array, or chunks of a microphone."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from math import ceil, gcd
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest

# Reads WAV files block by block: PCM of 8, 16, 24 and 32 bits and floats, with any number of channels.
#
#     sound = open_wav(file, "speech.wav")
#     for block in sound.blocks(): ...         # float32[n], channels mixed, from -1 to 1
#
# Files are not trusted: what the header says is compared with the file's size before anything is read,
# and no more than a block is in memory.

Samples = NDArray[np.float32]

MIN_RATE, MAX_RATE = 1_000, 192_000
MAX_CHANNELS = 64
MAX_SECONDS = 4 * 3600
MAX_SAMPLE = 2.0**31  # the power of a louder one is no finite number
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
            return _check_chunk(file, name, form, offset + 8, length, size)
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
    check_channels(channels, name)
    if align != channels * bits // 8:
        raise _wrong(name, f"{channels} channels of {bits} bits in {align} bytes")
    check_rate(rate, name)
    return tag, channels, rate, bits


def _check_chunk(
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


def check_channels(channels: int, name: str) -> None:
    """Raise unless a sound has as many channels as are supported."""
    if not 1 <= channels <= MAX_CHANNELS:
        raise _wrong(name, f"it has {channels} channels; 1 to {MAX_CHANNELS} are supported")


def check_seconds(seconds: float, name: str) -> None:
    """Raise if a sound is longer than is supported."""
    if seconds > MAX_SECONDS:
        raise _wrong(name, f"it lasts {seconds:,.0f} seconds; at most {MAX_SECONDS:,} are supported; cut it")


def _wrong(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"audio {name}: {what}", param="audio")


# Changes sample rates, block by block, with a windowed sinc.
#
#     convert = Resampler(44_100, 16_000)
#     for block in blocks: convert.feed(block)
#     convert.flush()
#
# Frequencies that the lower of both rates cannot hold are removed; the result does not depend on how the
# sound was cut into blocks.

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


RATE = 16_000  # samples a second that the models take
MAX_FILE_BYTES = 8 << 30
SOURCES = "a path, bytes of a file, an array of float32[n] or chunks of such, with sample_rate="

# Other containers by their first bytes.
_CONTAINERS = (
    (b"fLaC", "FLAC"),
    (b"OggS", "Ogg"),
    (b"ID3", "MP3"),
    (b"\xff\xfb", "MP3"),
    (b"\xff\xf3", "MP3"),
    (b"\xff\xf2", "MP3"),
    (b"FORM", "AIFF"),
    (b"caff", "CAF"),
    (b"RF64", "RF64"),
    (b"\x1aE\xdf\xa3", "WebM or Matroska"),
)


@dataclass(frozen=True)
class Sound:
    """Blocks of samples, float32[n] each, and how many of them make a second."""

    rate: int
    blocks: Iterable[Samples]

    def at_16_khz(self) -> Iterator[Samples]:
        """The blocks with 16,000 samples a second."""
        convert = Resampler(self.rate, RATE)
        for block in self.blocks:
            yield convert.feed(block)
        yield convert.flush()


def open_sound(source: Any, sample_rate: int | None = None, *, endless: bool = False) -> Sound:
    """The sound in `source`; that of files has its own rate, and arrays and chunks need `sample_rate`.

    `endless=True` lets chunks go on for as long as they come.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _from_file(io.BytesIO(source), "in the bytes", sample_rate)
    if isinstance(source, (str, os.PathLike)):
        return _from_path(source, sample_rate)
    if isinstance(source, np.ndarray):
        rate = _given_rate(sample_rate)
        check_seconds(len(source) / rate if source.ndim else 0, "in the array")
        return Sound(rate, [_checked(source)])
    if isinstance(source, Iterable):
        rate = _given_rate(sample_rate)
        return Sound(rate, _from_chunks(source, rate, endless))
    raise InvalidRequest(f"audio is {SOURCES}, not {type(source).__name__}", param="audio")


def _given_rate(rate: int | None) -> int:
    if isinstance(rate, bool) or not isinstance(rate, int):
        raise InvalidRequest(
            f"sample_rate must be a number of samples a second, not {rate!r}; arrays and chunks need it",
            param="sample_rate",
            value=rate,
        )
    check_rate(rate, "in the array")
    return rate


def _checked(samples: Any) -> Samples:
    """float32[n] from floats or integers; several channels, [n, channels], are mixed."""
    array = np.asarray(samples)
    if array.ndim == 2 and 1 <= array.shape[1] <= 64:
        array = array.mean(axis=1) if array.dtype.kind == "f" else array.mean(axis=1).astype(array.dtype)
    if array.ndim != 1 or array.dtype.kind not in "fi":
        raise InvalidRequest(
            f"samples are float32[n] or int16[n], not {array.dtype}{list(array.shape)}", param="audio"
        )
    if array.dtype.kind == "i":
        return (array / -float(np.iinfo(array.dtype).min)).astype(np.float32)
    return _within_limits(np.ascontiguousarray(array, np.float32), "in the array")


def _from_chunks(chunks: Iterable[Any], rate: int, endless: bool) -> Iterator[Samples]:
    seconds = 0.0
    for chunk in chunks:
        samples = _checked(chunk)
        seconds += len(samples) / rate
        if not endless:
            check_seconds(seconds, "in the chunks")
        yield samples


def _from_path(path: str | os.PathLike[str], sample_rate: int | None) -> Sound:
    name = os.fspath(path)
    try:
        status = Path(name).stat()
        if not S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise InvalidRequest(
                f"audio {name!r} is no file, or larger than {MAX_FILE_BYTES:,} bytes; give {SOURCES}",
                param="audio",
                value=name,
            )
        file = Path(name).open("rb")  # noqa: SIM115 -- its blocks are read later
    except FileNotFoundError:
        raise InvalidRequest(f"audio {name!r}: no such file", param="audio", value=name) from None
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"audio {name!r} cannot be read: {error}", param="audio", value=name) from None
    try:
        sound = _from_file(file, repr(name), sample_rate)
    except BaseException:
        file.close()
        raise
    return Sound(sound.rate, _closing(file, sound.blocks))


def _closing(file: BinaryIO, blocks: Iterable[Samples]) -> Iterator[Samples]:
    with file:
        yield from blocks


def _from_file(file: BinaryIO, name: str, sample_rate: int | None) -> Sound:
    head = file.read(12)
    container = next((kind for first, kind in _CONTAINERS if head.startswith(first)), None)
    if head[4:8] == b"ftyp":
        container = "MP4"
    if container:
        sound = _with_soundfile(file, name, container)
    else:
        wav = open_wav(file, name)
        sound = Sound(wav.rate, (_within_limits(block, name) for block in wav.blocks()))
    if sample_rate not in (None, sound.rate):
        raise InvalidRequest(
            f"audio {name} has {sound.rate} samples a second, not {sample_rate}; leave sample_rate out",
            param="sample_rate",
            value=sample_rate,
        )
    return sound


def _within_limits(samples: Samples, name: str) -> Samples:
    """The samples; raise if there are some of which no spectrogram can be computed."""
    if not (np.abs(samples) <= MAX_SAMPLE).all():  # nor are those that are no numbers
        raise _wrong(name, "there are samples that are no finite numbers, or far too large; use −1 to 1")
    return samples


def _with_soundfile(file: BinaryIO, name: str, container: str) -> Sound:
    """Other containers, by the package `soundfile` if it is installed."""
    try:
        soundfile = import_module("soundfile")
    except ImportError:
        raise InvalidRequest(
            f"audio {name} is {container}; convert it to WAV (ffmpeg -i … -ar 16000 -ac 1 out.wav), or "
            "pip install soundfile for FLAC, Ogg, MP3 and AIFF",
            param="audio",
        ) from None
    file.seek(0)
    try:
        opened = soundfile.SoundFile(file)
    except Exception as error:  # its exceptions have no common base with its own name
        raise _unreadable(name, container, error) from None
    check_rate(opened.samplerate, name)
    check_channels(opened.channels, name)
    check_seconds(opened.frames / opened.samplerate, name)

    def blocks() -> Iterator[Samples]:
        try:
            for block in opened.blocks(BLOCK_SECONDS * opened.samplerate, dtype="float32", always_2d=True):
                yield _within_limits(block.mean(axis=1), name)
        except RuntimeError as error:  # it is damaged behind its head
            raise _unreadable(name, container, error) from None

    return Sound(opened.samplerate, blocks())


def _unreadable(name: str, container: str, error: Exception) -> InvalidRequest:
    return _wrong(name, f"it is {container}, which soundfile cannot read: {error}; convert it to WAV")
