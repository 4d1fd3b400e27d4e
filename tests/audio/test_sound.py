"""WAV files, well made and hostile ones; sample rates; and what else is taken as a sound."""

import io
import struct
import sys
import wave
from types import SimpleNamespace

import numpy as np
import pytest

from stretto.audio import Audio, sound
from stretto.audio.mel import log_mels
from stretto.audio.sound import Resampler, open_sound, open_wav
from stretto.errors import InvalidRequest

RAMP = np.linspace(-1, 0.99, 200).astype(np.float32)


def chunk(name, data):
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def wav_bytes(data, *, tag=1, channels=1, rate=16000, bits=16, align=None, size=None, extra=b"", before=b""):
    width = channels * bits // 8 if align is None else align
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * width % 2**32, width, bits) + extra
    body = (
        chunk(b"fmt ", form)
        + before
        + b"data"
        + struct.pack("<I", len(data) if size is None else size)
        + data
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def pcm_24(samples):
    wide = (samples * 2**23).astype("<i4").view(np.uint8).reshape(-1, 4)
    return wide[:, :3].tobytes()


def samples_of(data):
    return np.concatenate(list(open_sound(data).blocks))


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (np.rint(RAMP * 128 + 128).astype(np.uint8).tobytes(), {"bits": 8}),
        ((RAMP * 2**15).astype("<i2").tobytes(), {"bits": 16}),
        (pcm_24(RAMP), {"bits": 24}),
        ((RAMP * 2.0**31).astype("<i4").tobytes(), {"bits": 32}),
        (RAMP.tobytes(), {"bits": 32, "tag": 3}),
        (RAMP.astype("<f8").tobytes(), {"bits": 64, "tag": 3}),
        (
            RAMP.tobytes(),
            {"bits": 32, "tag": 0xFFFE, "extra": struct.pack("<HHIH", 22, 32, 4, 3) + b"\0" * 14},
        ),
    ],
)
def test_all_formats_of_samples_are_read(data, options):
    np.testing.assert_allclose(samples_of(wav_bytes(data, **options)), RAMP, atol=0.5 / 2 ** min(7, 7) + 1e-6)


def test_files_of_the_standard_library_are_read(tmp_path):
    path = tmp_path / "two.wav"
    both = np.stack((RAMP, -RAMP / 2), axis=1)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((both * 2**15).astype("<i2").tobytes())
    sound = open_sound(path)
    assert sound.rate == 8000
    np.testing.assert_allclose(np.concatenate(list(sound.blocks)), RAMP / 4, atol=1e-4)


def test_other_chunks_are_passed_over_and_a_missing_size_is_the_rest():
    data = wav_bytes((RAMP * 2**15).astype("<i2").tobytes(), before=chunk(b"LIST", b"odd"), size=0xFFFFFFFF)
    np.testing.assert_allclose(samples_of(data), RAMP, atol=1e-4)


def test_long_files_come_in_blocks(monkeypatch):
    monkeypatch.setattr(sound, "BLOCK_SECONDS", 1)
    data = wav_bytes(np.zeros(2500, "<i2").tobytes(), rate=1000)
    assert [len(block) for block in open_sound(data).blocks] == [1000, 1000, 500]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 4_000_000_000}, "ends after 8 of 4000000000 bytes"),
        ({"channels": 0}, "0 channels"),
        ({"channels": 65535, "align": 2}, "65535 channels"),
        ({"rate": 0}, "0 samples a second"),
        ({"rate": 4_000_000_000}, "4000000000 samples a second"),
        ({"bits": 7}, "format 1 with 7 bits"),
        ({"tag": 85}, "format 85"),
        ({"align": 9}, "in 9 bytes"),
    ],
)
def test_headers_that_lie_are_refused(options, message):
    with pytest.raises(InvalidRequest, match=message):
        open_sound(wav_bytes(b"\0" * 8, **options))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no WAV file"),
        (b"RIFF\0\0\0\0WAVE", "no samples in it"),
        (b"RIFF\0\0\0\0WAVE" + chunk(b"data", b"\0\0"), "before their format"),
        (b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", b"\1\0"), "instead of 16"),
        (b"RIFF\0\0\0\0WAVE" + chunk(b"junk", b"") * 2000, "no samples in it"),
        (b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff" + b"\0" * 40, "format 0 with 0 bits"),
    ],
)
def test_damaged_files_are_refused(data, message):
    with pytest.raises(InvalidRequest, match=message):
        open_wav(io.BytesIO(data), "here")


def test_a_sound_that_is_too_long_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(sound, "MAX_SECONDS", 1)
    with pytest.raises(InvalidRequest, match="lasts 2 seconds; at most 1"):
        open_sound(wav_bytes(b"\0" * 4000, rate=1000))
    with pytest.raises(InvalidRequest, match="lasts 2 seconds"):
        open_sound(np.zeros(2000, np.float32), 1000)
    with pytest.raises(InvalidRequest, match="lasts 2 seconds"):
        list(open_sound(iter([np.zeros(1000, np.float32)] * 2), 1000).blocks)
    assert len(list(open_sound([np.zeros(1000, np.float32)] * 3, 1000, endless=True).blocks)) == 3


@pytest.mark.parametrize(
    ("head", "name"), [(b"fLaC", "FLAC"), (b"ID3\4", "MP3"), (b"OggS", "Ogg"), (b"\0\0\0\x20ftypM4A ", "MP4")]
)
def test_other_containers_are_named(head, name, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(InvalidRequest, match=f"is {name}; convert it to WAV"):
        open_sound(head + b"\0" * 20)


class SoundFile:
    """What stands in for soundfile's class: a second of silence, then damage."""

    samplerate, channels, frames = 16_000, 2, 32_000

    def __init__(self, file):
        pass

    def blocks(self, size, dtype, always_2d):
        yield np.zeros((16_000, self.channels), dtype)
        raise RuntimeError("flac decoder lost sync")


def test_what_other_containers_claim_is_checked_and_damage_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", SimpleNamespace(SoundFile=SoundFile))
    with pytest.raises(InvalidRequest, match="FLAC, which soundfile cannot read: flac decoder lost sync"):
        Audio.open(b"fLaC" + b"\0" * 20)
    monkeypatch.setattr(SoundFile, "channels", 1024)
    with pytest.raises(InvalidRequest, match="it has 1024 channels; 1 to 64"):
        open_sound(b"fLaC" + b"\0" * 20)


def test_samples_whose_spectrogram_would_be_infinite_are_refused():
    loud = np.full(400, sound.MAX_SAMPLE, np.float32)
    assert np.isfinite(log_mels(Audio.open(loud, sample_rate=16_000).samples, 80)).all()
    with pytest.raises(InvalidRequest, match="far too large; use −1 to 1"):
        Audio.open(wav_bytes((loud * 1e12).tobytes(), bits=32, tag=3))
    with pytest.raises(InvalidRequest, match="far too large"):
        Audio.open(loud * 1e12, sample_rate=16_000)


@pytest.mark.parametrize(
    ("source", "rate", "message"),
    [
        (np.zeros(9, np.float32), None, "arrays and chunks need it"),
        (np.zeros(9, np.float32), 10, "10 samples a second"),
        (np.zeros((2, 2, 2), np.float32), 16000, r"not float32\[2, 2, 2\]"),
        (np.asarray(["a"]), 16000, "samples are float32"),
        (np.asarray([np.nan], np.float32), 16000, "no finite numbers"),
        (7, 16000, "not int"),
        ("no/such.wav", None, "no such file"),
        (wav_bytes(b"\0\0"), 8000, "16000 samples a second, not 8000"),
    ],
)
def test_what_is_no_sound_is_refused(source, rate, message):
    with pytest.raises(InvalidRequest, match=message):
        open_sound(source, rate)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="is no file"):
        open_sound(tmp_path)


def test_integers_are_scaled_and_channels_mixed():
    (block,) = open_sound(np.asarray([(0, 16384), (-32768, 0)], np.int16), 16000).blocks
    assert block.tolist() == [0.25, -0.5]


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000, 11111])
def test_a_tone_keeps_its_frequency_at_any_rate(rate):
    t = np.arange(rate) / rate
    convert = Resampler(rate, 16000)
    made = np.concatenate((convert.feed(np.sin(2 * np.pi * 440 * t).astype(np.float32)), convert.flush()))
    assert len(made) == 16000
    expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(made[500:-500], expected[500:-500], atol=2e-5)


def test_what_the_lower_rate_cannot_hold_is_removed():
    t = np.arange(48000) / 48000
    convert = Resampler(48000, 16000)
    made = np.concatenate((convert.feed(np.sin(2 * np.pi * 11000 * t).astype(np.float32)), convert.flush()))
    assert np.abs(made[500:-500]).max() < 2e-5


def test_resampling_does_not_depend_on_the_blocks():
    samples = np.random.default_rng(3).normal(size=5000).astype(np.float32)
    whole, pieces = Resampler(44100, 16000), Resampler(44100, 16000)
    expected = np.concatenate((whole.feed(samples), whole.flush()))
    parts = [pieces.feed(part) for part in np.split(samples, [1, 7, 300, 301, 4000])]
    np.testing.assert_array_equal(np.concatenate((*parts, pieces.flush())), expected)
