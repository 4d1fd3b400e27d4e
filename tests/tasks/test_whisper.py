"""Whisper: the spectrogram, both files of weights, the KV cache, the rules of times, and a real recording."""

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from real_tasks import open_real
from stretto.audio.mel import log_mel, log_mels, mel_filters
from stretto.errors import InvalidRequest, ModelError
from stretto.tasks.speech import whisper
from stretto.tasks.speech.whisper import (
    Tokens,
    Transformer,
    allowed,
    gelu,
    read_checkpoint,
    read_ctranslate2,
    read_tokens,
)

DATA = Path(__file__).parent.parent / "data" / "tasks"
N_VOCAB, WIDTH, N_LAYERS = 51_865, 128, 2
LETTERS = {letter: number for number, letter in enumerate("Ġabcdefghijklmnopqrstuvwxyz-'(")}
LANGUAGES = {"<|en|>": 50_259, "<|de|>": 50_260, "<|haw|>": 50_352, "<|translate|>": 50_358}
TOKENS = Tokens(LETTERS, LANGUAGES, N_VOCAB)
TIME = TOKENS.first_time


def checkpoint():
    """Random weights by the names of OpenAI's checkpoint."""
    rng = np.random.default_rng(0)
    found = {}

    def add(name, *shape):
        found[name] = (rng.standard_normal(shape) * 0.05).astype(np.float32)

    def attention(name):
        for part in ("query", "key", "value", "out"):
            add(f"{name}.{part}.weight", WIDTH, WIDTH)
            if part != "key":
                add(f"{name}.{part}.bias", WIDTH)
        for part in ("weight", "bias"):
            add(f"{name}_ln.{part}", WIDTH)

    for side, last, length in (("encoder", "ln_post", 1500), ("decoder", "ln", 448)):
        add(f"{side}.positional_embedding", length, WIDTH)
        add(f"{side}.{last}.weight", WIDTH)
        add(f"{side}.{last}.bias", WIDTH)
        for number in range(N_LAYERS):
            block = f"{side}.blocks.{number}"
            attention(f"{block}.attn")
            if side == "decoder":
                attention(f"{block}.cross_attn")
            for part, (n_in, n_out) in {"0": (WIDTH, 4 * WIDTH), "2": (4 * WIDTH, WIDTH)}.items():
                add(f"{block}.mlp.{part}.weight", n_out, n_in)
                add(f"{block}.mlp.{part}.bias", n_out)
            add(f"{block}.mlp_ln.weight", WIDTH)
            add(f"{block}.mlp_ln.bias", WIDTH)
    for i, n_in in ((1, 80), (2, WIDTH)):
        add(f"encoder.conv{i}.weight", WIDTH, n_in, 3)
        add(f"encoder.conv{i}.bias", WIDTH)
    add("decoder.token_embedding.weight", N_VOCAB, WIDTH)
    return found


@pytest.fixture(scope="module")
def weights():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whisper, "read_torch", lambda path: checkpoint())
        return read_checkpoint(Path("own.pt"))


@pytest.fixture(scope="module")
def model(weights):
    return Transformer(weights)


def written(variables, version=6, spec="WhisperSpec"):
    """CTranslate2's `model.bin`."""

    def text(value):
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    data = struct.pack("<I", version) + text(spec) + struct.pack("<II", 3, len(variables))
    for name, value in variables.items():
        kind = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}[str(value.dtype)]
        data += text(name) + struct.pack("<B", value.ndim) + struct.pack(f"<{value.ndim}I", *value.shape)
        data += struct.pack("<BI", kind, value.nbytes) + value.tobytes()
    return data + struct.pack("<I", 0)


# The spectrogram.


def test_filters_are_slaneys():
    filters = mel_filters(80)
    assert filters.shape == (80, 201)
    assert filters[0, 1] == pytest.approx(0.024862593, rel=1e-6)  # as librosa's
    assert ((filters > 0).sum(axis=1) >= 1).all()
    widths = filters.sum(axis=1) * 40  # Hz: areas are equal where a triangle has many bins
    np.testing.assert_allclose(widths[60:], 1.0, rtol=0.03)


def test_a_tone_is_at_its_frequency_and_silence_is_behind_the_sound():
    time = np.arange(16_000) / 16_000
    mels = log_mel(np.sin(2 * np.pi * 1000 * time).astype(np.float32), 80)
    assert (mels.shape, mels.dtype) == ((80, 3000), np.float32)
    loudest = int(mels[:, 50].argmax())
    assert mel_filters(80)[loudest, 1000 // 40] > 0
    assert (mels[:, 110:] == mels.min()).all()
    assert mels.max() - mels.min() == pytest.approx(2.0)
    assert (log_mel(np.zeros(40 * 16_000, np.float32), 80) == log_mel(np.zeros(0, np.float32), 80)).all()


def test_the_spectrogram_of_a_long_sound_is_that_of_its_windows():
    sound = np.random.default_rng(4).standard_normal(70 * 16_000).astype(np.float32)
    sound[32 * 16_000 :] *= 1e-3
    short = sound[: 2 * 16_000]
    np.testing.assert_allclose(log_mels(short, 80), log_mel(short, 80)[:, :200], atol=1e-5)
    long = log_mels(sound, 80)
    assert long.shape == (80, 7000)
    np.testing.assert_allclose(long[:, :2990], log_mel(sound, 80)[:, :2990], atol=1e-3)
    assert long.max() - long.min() == pytest.approx(2.0)  # of the whole, not of each window


def test_gelu_is_exact():
    x = np.linspace(-6, 6, 1001, dtype=np.float32)
    exact = [value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()]
    np.testing.assert_allclose(gelu(x), exact, atol=5e-7)


# The transformer.


def test_both_files_have_the_same_weights(weights, tmp_path):
    variables = {**weights, "decoder/num_heads": np.array(2, np.int16)}
    variables["encoder/conv1/bias"] = weights["encoder/conv1/bias"].astype(np.float16)
    (tmp_path / "model.bin").write_bytes(written(variables))
    read = read_ctranslate2(tmp_path / "model.bin")
    assert read.keys() == weights.keys()
    for name, value in weights.items():
        tolerance = 1e-3 if name == "encoder/conv1/bias" else 0.0
        np.testing.assert_allclose(read[name], value, atol=tolerance)


@pytest.mark.parametrize("cut", [0, 3, 30, 500])
def test_a_damaged_file_is_refused(cut, tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(written({"a": np.zeros((16, 16), np.float32)})[:cut])
    with pytest.raises(ModelError, match="damaged"):
        read_ctranslate2(path)


def test_other_models_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "model.bin"
    path.write_bytes(written({}, spec="TransformerSpec"))
    with pytest.raises(ModelError, match="'TransformerSpec' of version 6"):
        read_ctranslate2(path)
    path.write_bytes(written({}, version=5))
    with pytest.raises(ModelError, match="of version 5"):
        read_ctranslate2(path)
    monkeypatch.setattr(whisper, "read_torch", lambda path: {"fc.weight": np.zeros((2, 2))})
    with pytest.raises(ModelError, match="no checkpoint of Whisper"):
        read_checkpoint(path)


def test_a_convolution_and_attention_are_what_they_are_by_hand(model, weights):
    x = np.random.default_rng(1).standard_normal((6, 80)).astype(np.float32)
    kernel, bias = weights["encoder/conv1/weight"], weights["encoder/conv1/bias"]
    padded = np.pad(x, ((1, 1), (0, 0)))
    for step in (1, 2):
        found = whisper.convolved(weights, "encoder/conv1", x, step)
        by_hand = [np.einsum("ik,oki->o", padded[at : at + 3], kernel) + bias for at in range(0, 6, step)]
        np.testing.assert_allclose(found, gelu(np.array(by_hand, np.float32)), atol=1e-5)
    q, k, v = (np.random.default_rng(i).standard_normal((2, 4, 64)).astype(np.float32) for i in range(3))
    found = model._attended(q, k, v, is_causal=True)
    for head in range(2):
        for row in range(4):
            scores = np.exp(q[head, row] @ k[head, : row + 1].T / 8)
            by_hand = scores / scores.sum() @ v[head, : row + 1]
            np.testing.assert_allclose(found[row, 64 * head : 64 * head + 64], by_hand, atol=1e-4)


def test_the_cache_does_not_change_logits(model):
    hidden = model.encode(log_mel(np.random.default_rng(2).standard_normal(16_000).astype(np.float32), 80))
    assert hidden.shape == (1500, WIDTH)
    whole = model.decode([TOKENS.start, 50_259, 50_359, TIME], model.hear(hidden))
    state = model.hear(hidden)
    for token in (TOKENS.start, 50_259):
        model.decode([token], state)
    pieces = model.decode([50_359, TIME], state)
    np.testing.assert_allclose(pieces, whole, atol=1e-4)
    other = model.decode([TOKENS.start, 50_260, 50_359, TIME], model.hear(hidden))
    assert np.abs(other - whole).max() > 1e-3


# Tokens and times.


def test_numbers_of_both_vocabularies():
    assert (TOKENS.end, TOKENS.start, TOKENS.transcribe, TIME) == (50_257, 50_258, 50_359, 50_364)
    english = Tokens(LETTERS, {}, 51_864)
    assert (english.end, english.start, english.first_time) == (50_256, 50_257, 50_363)
    assert list(TOKENS.languages) == ["en", "de", "haw"]
    assert english.languages == {}
    assert TOKENS.text([LETTERS["Ġ"], LETTERS["a"], TIME, LETTERS["b"], 50_259]) == " ab"
    assert {LETTERS["("], 50_258, 50_259, 50_363} <= set(TOKENS.suppressed)
    assert not {LETTERS["a"], LETTERS["-"], TOKENS.end, TIME} & set(TOKENS.suppressed)


def test_vocabularies_are_read_from_both_files(tmp_path):
    (tmp_path / "encoder.json").write_text(json.dumps(LETTERS))
    assert read_tokens(tmp_path / "encoder.json", 51_864).text([1, 2]) == "ab"
    added = [{"content": text, "id": number} for text, number in LANGUAGES.items()]
    both = {"model": {"vocab": LETTERS}, "added_tokens": added}
    (tmp_path / "tokenizer.json").write_text(json.dumps(both))
    assert read_tokens(tmp_path / "tokenizer.json", N_VOCAB).languages == TOKENS.languages


def possible(said, **logits):
    """The tokens that the rules allow where all others are equal: the least and the greatest, and text."""
    row = np.full(N_VOCAB, -20.0, np.float32)
    for name, value in logits.items():
        row[int(name.removeprefix("t"))] = value
    return np.flatnonzero(np.isfinite(allowed(row, said, TOKENS)))


def test_rules_of_times():
    a = LETTERS["a"]
    first = possible([])
    assert (first.min(), first.max()) == (TIME, TIME + 50)  # the first word within a second
    after_first = possible([TIME])
    assert after_first.max() == TOKENS.end  # text, or the end
    in_text = possible([TIME, a], t1=0.0)
    assert {a, TOKENS.end, TIME + 1} <= set(in_text.tolist())
    assert TIME not in in_text  # times do not go back, nor stay
    at_end = possible([TIME, a, TIME + 9], t50257=0.0)
    assert at_end.min() == TOKENS.end  # the pair's other half, or the end of all
    assert {TOKENS.end, TIME + 9} <= set(at_end.tolist())
    assert TIME + 8 not in at_end
    assert possible([TIME, a, TIME + 9, TIME + 9]).max() == TOKENS.end
    # Times that are together more probable than any text: one of them.
    assert possible([TIME, a]).min() == TIME + 1


def transcriber(model, voice=None):
    made = whisper.Whisper.__new__(whisper.Whisper)
    made._model, made._tokens, made.languages = model, TOKENS, tuple(TOKENS.languages)
    return made


def test_segments_are_between_times():
    a, b = LETTERS["a"], LETTERS["b"]
    cut = transcriber(None)._cut
    said = [TIME, a, TIME + 50, TIME + 60, b, b, TIME + 100]
    assert [(one.start, one.end, one.text) for one in cut(said, 3.0)] == [(0.0, 1.0, "a"), (1.2, 2.0, "bb")]
    (one,) = cut([TIME + 10, a], 1.5)  # it has no end
    assert (one.start, one.end) == (0.2, 1.5)
    assert cut([TIME, TIME + 5], 1.0) == []
    (one,) = cut([TIME, a, TIME + 500], 1.0)  # beyond the sound
    assert one.end == 1.0


@pytest.mark.parametrize(
    ("said", "kept", "frames"),
    [
        ([TIME, 1, TIME + 100, TIME + 100, 2], 3, 200),  # the second has no end: it is heard again
        ([TIME, 1, TIME + 100, TIME + 150, 2, TIME + 400, TIME + 400], 6, 800),
        ([TIME, 1, TIME + 100, TIME + 150, 2, TIME + 400], 6, 2500),  # nothing is said behind
        ([TIME, 1, TIME + 100], 3, 2500),
        ([TIME, 1], 2, 2500),
        ([], 0, 2500),
    ],
)
def test_the_next_window_begins_where_the_last_whole_segment_ended(said, kept, frames):
    assert transcriber(None)._whole_segments(said, 2500) == (said[:kept], frames)


def test_windows_add_up_and_silent_ones_are_left_out(model):
    a, b = LETTERS["a"], LETTERS["b"]
    answers = [
        whisper.Heard("de", [TIME, a, TIME + 1000, TIME + 1000, b], -0.5, 0.9),
        whisper.Heard("de", [TIME, b, TIME + 100], -1.5, 0.9),  # silence
        whisper.Heard("de", [TIME + 50, b, TIME + 100, TIME + 100], -1.5, 0.1),
        whisper.Heard("de", [TIME, a], -0.5, 0.1),
    ]
    asked, made = [], transcriber(model)

    def hear(mels, language):
        asked.append((mels.shape, language))
        return answers[len(asked) - 1]

    made._hear = hear
    language, segments = made._write_whole(np.zeros(60 * 16_000, np.float32), None)
    assert language == "de"
    # 20 s; then 30 s of silence, and 10 s of which two are taken.
    assert [(one.start, one.end, one.text) for one in segments] == [
        (0.0, 20.0, "a"),
        (51.0, 52.0, "b"),
        (52.0, 60.0, "a"),
    ]
    assert asked == [((80, 3000), None)] + [((80, 3000), "de")] * 3


@pytest.mark.parametrize(
    ("silence", "likelihood", "silent"), [(0.7, -1.1, True), (0.7, -0.9, False), (0.5, -1.1, False)]
)
def test_silence_is_likely_and_text_is_not(silence, likelihood, silent):
    assert whisper.Heard("en", [], likelihood, silence).is_silent == silent


def test_an_answer_ends_and_has_a_language(model):
    samples = np.random.default_rng(3).standard_normal(8000).astype(np.float32)
    said, _ = transcriber(model)._write(samples, "de")
    assert said == "de"
    heard, segments = transcriber(model)._write(samples, None)
    assert heard in TOKENS.languages
    assert all(0 <= one.start <= one.end <= 0.5 for one in segments)


def test_a_recording_is_written_down(monkeypatch):
    model = open_real("whisper-tiny.en")
    transcript = model.transcribe(DATA / "beckett.wav", vad=False)
    words = transcript.text.lower().replace(",", "").replace(".", "").split()
    assert " ".join(words).startswith("ever tried ever failed no matter try again")
    assert [one.start for one in transcript] == sorted(one.start for one in transcript)
    assert transcript.segments[-1].end <= transcript.duration
    with pytest.raises(InvalidRequest, match=r"one of en, which whisper-tiny\.en knows, not 'de'"):
        model.transcribe(DATA / "beckett.wav", language="de")
    silence = np.zeros(31 * 16_000, np.float32)
    assert model.transcribe(silence, sample_rate=16_000).text == ""
    monkeypatch.setattr(whisper.Whisper, "max_piece_seconds", 30)
    with pytest.raises(InvalidRequest, match="at most 30 seconds"):
        model.transcribe(silence, sample_rate=16_000, vad=False)
    model.close()
