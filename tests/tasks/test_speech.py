"""Speech: where pieces begin and end, the KV cache of the decoder, and Moonshine on a real recording."""

import json
import re
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from real_tasks import open_real
from stretto.audio.sound import open_sound
from stretto.errors import InvalidRequest
from stretto.tasks.speech.voice import WINDOW, Cutter, Rules, Tape, cut_speech

DATA = Path(__file__).parent.parent / "data" / "tasks"
RULES = Rules(min_speech=2 * WINDOW, min_silence=4 * WINDOW, max_speech=22 * WINDOW, padding=WINDOW // 2)


def spans(chances, rules=RULES):
    cutter = Cutter(rules)
    found = [cutter.take(chance) for chance in chances] + [cutter.finish(len(chances) * WINDOW)]
    return [(start / WINDOW, end / WINDOW) for start, end in filter(None, found)]


def test_speech_ends_with_a_silence_that_is_long_enough():
    chances = [0.1] * 3 + [0.9] * 5 + [0.1] * 3 + [0.9] * 4 + [0.1] * 8
    assert spans(chances) == [(2.5, 15.5)]


def test_two_pieces_are_padded_apart():
    assert spans([0.9] * 5 + [0.1] * 6 + [0.9] * 5) == [(0, 5.5), (10.5, 16)]


def test_a_click_is_no_speech():
    assert spans([0.1, 0.9, 0.9] + [0.1] * 10) == []


def test_speech_goes_on_between_the_thresholds():
    assert spans([0.9] * 4 + [0.4] * 10 + [0.9] * 4) == [(0, 18)]


def test_long_speech_is_cut_at_its_longest_pause():
    rules = Rules(
        min_speech=2 * WINDOW,
        min_silence=9 * WINDOW,
        max_speech=22 * WINDOW,
        min_silence_at_max=WINDOW,
        padding=WINDOW // 2,
    )
    chances = [0.9] * 5 + [0.1] * 2 + [0.9] * 3 + [0.1] * 4 + [0.9] * 20
    assert spans(chances, rules)[:2] == [(0, 10.5), (13.5, 34)]


def test_long_speech_without_a_pause_is_cut_without_a_gap():
    found = spans([0.9] * 50)
    assert [start for start, _ in found[1:]] == [end for _, end in found[:-1]]
    assert found[-1][1] == 50
    assert max(end - start for start, end in found) <= 22


def test_a_tape_keeps_only_what_is_needed():
    tape = Tape()
    for start in range(0, 100, 10):
        tape.append(np.arange(start, start + 10, dtype=np.float32))
    tape.forget(40)
    assert tape.end == 100
    assert tape.cut(95, 200).tolist() == [95, 96, 97, 98, 99]
    assert tape.piece(40, 42).samples.tolist() == [40, 41]


class Loud:
    """Speech is where the samples are not zero."""

    def chances(self, samples):
        return np.abs(samples.reshape(-1, WINDOW)).max(axis=1)


@pytest.mark.parametrize("sizes", [(100_000,), (1, 511, 513, 7000, 92_975), (160,) * 625])
def test_pieces_do_not_depend_on_how_the_sound_comes(sizes):
    sound = np.zeros(100_000, np.float32)
    sound[20_000:40_000] = sound[70_000:99_999] = 0.9
    pieces = list(cut_speech(np.split(sound, np.cumsum(sizes)[:-1]), Loud(), Rules()))
    assert [(piece.start, piece.end) for piece in pieces] == [(18_368, 42_048), (68_032, 100_000)]
    for piece in pieces:
        np.testing.assert_array_equal(piece.samples, sound[piece.start : piece.end])


@pytest.mark.slow
def test_a_recording_is_written_down_as_by_the_models_own_package():
    golden = json.loads((DATA / "texts.json").read_text())["speech"]
    with open_real("moonshine") as model:
        whole = model.transcribe(DATA / "beckett.wav", vad=False)
        transcript = model.transcribe((DATA / "beckett.wav").read_bytes())
    assert whole.text == golden["whole"]
    assert [segment.text for segment in transcript] == golden["pieces"]
    times = [(segment.start, segment.end) for segment in transcript]
    assert times == [(start / 16000, end / 16000) for start, end in golden["spans"]]
    assert (transcript.duration, transcript.license) == (6.1, "MIT")


@pytest.mark.slow
def test_the_larger_moonshine_hears_the_same_words():
    with open_real("moonshine-base") as model:
        text = model.transcribe(DATA / "beckett.wav", vad=False).text
    said = "ever tried ever failed no matter try again"
    assert " ".join(re.findall("[a-z]+", text.lower())) == said


@pytest.mark.slow
def test_a_stream_gives_each_segment_as_soon_as_it_is_over():
    samples = np.concatenate(list(open_sound(DATA / "beckett.wav").blocks))[:50_000]
    sent = []

    def microphone():
        for start in range(0, len(samples), 1600):
            sent.append(start)
            yield samples[start : start + 1600]

    with open_real("moonshine") as model:
        stream = model.transcribe(microphone(), sample_rate=16_000, stream=True)
        first, so_far = next(stream), len(sent) * 1600
        rest = list(stream)
        expected = model.transcribe(samples, sample_rate=16_000).segments
    assert tuple(chain([first], rest)) == expected
    assert first.text == "Ever tried."
    assert so_far < 32_000  # half a second after its end, not at the end of the sound


@pytest.mark.slow
def test_silence_and_long_sounds_without_cutting():
    with open_real("moonshine") as model:
        assert model.transcribe(np.zeros(16_000, np.float32), sample_rate=16_000).text == ""
        assert model.transcribe(np.zeros(100, np.float32), sample_rate=16_000, vad=False).segments == ()
        with pytest.raises(InvalidRequest, match="at most 64 seconds"):
            model.transcribe(np.zeros(65 * 16_000, np.float32), sample_rate=16_000, vad=False)
