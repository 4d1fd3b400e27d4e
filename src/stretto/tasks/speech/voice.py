"""Silero VAD: cuts sound into pieces of speech, as it comes.

Windows of 32 ms get a probability of speech each; runs of them become pieces with the rules of Silero's own
`get_speech_timestamps`, one window after the other, so that a piece is there as soon as its end is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.audio.sound import RATE
from stretto.backends.onnx_session import OnnxSession

Samples = NDArray[np.float32]

WINDOW = 512  # samples
_CONTEXT = 64  # samples of the window before that the model sees again
_STATE_SHAPE = (1, 1, 128)
_BLOCK_WINDOWS = 256


@dataclass(frozen=True)
class Rules:
    """When speech begins and ends; lengths are samples."""

    threshold: float = 0.5
    low_threshold: float = 0.35  # speech goes on down to this probability
    min_speech: int = RATE // 4
    min_silence: int = RATE // 2
    max_speech: int = 28 * RATE
    min_silence_at_max: int = 98 * RATE // 1000  # a pause this long is a place to cut speech that is too long
    padding: int = RATE // 10


@dataclass(frozen=True)
class Piece:
    """Speech from sample `start` to `end`."""

    start: int
    end: int
    samples: Samples


class Voice:
    """The probability of speech in each window, with the model's state carried from call to call."""

    def __init__(self, session: OnnxSession) -> None:
        self._session = session
        self._state = [np.zeros(_STATE_SHAPE, np.float32), np.zeros(_STATE_SHAPE, np.float32)]
        self._context = np.zeros(_CONTEXT, np.float32)

    def chances(self, samples: Samples) -> Samples:
        """float32[n] for whole windows, float32[n × 512]."""
        found = [np.zeros(0, np.float32)]
        windows = samples.reshape(-1, WINDOW)
        for start in range(0, len(windows), _BLOCK_WINDOWS):
            block = windows[start : start + _BLOCK_WINDOWS]
            before = np.concatenate((self._context[None], block[:-1, -_CONTEXT:]))
            feeds = {
                "input": np.concatenate((before, block), axis=1),
                "h": self._state[0],
                "c": self._state[1],
            }
            made = self._session.run(feeds)
            found.append(made["speech_probs"].reshape(-1))
            self._state = [made["hn"], made["cn"]]
            self._context = block[-1, -_CONTEXT:]
        return np.concatenate(found)


class Cutter:
    """Turns probabilities of windows, one after the other, into spans of speech, [start, end) in samples."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._longest = rules.max_speech - WINDOW - 2 * rules.padding
        self._position = 0
        self._start: int | None = None  # of the speech that goes on
        self._quiet: int | None = None  # since when it is quiet within it
        self._pauses: list[tuple[int, int]] = []  # within it: start and length
        self._used = 0  # samples before this one belong to spans already

    @property
    def needed(self) -> int:
        """The first sample that a later span may need."""
        return self._padded(self._position if self._start is None else self._start)

    def take(self, chance: float) -> tuple[int, int] | None:
        """Advance by one window; the span that is complete with it, if any."""
        rules, now = self._rules, self._position
        self._position += WINDOW
        if chance >= rules.threshold and self._quiet is not None:
            if now - self._quiet > rules.min_silence_at_max:
                self._pauses.append((self._quiet, now - self._quiet))
            self._quiet = None
        if self._start is None:
            self._start = now if chance >= rules.threshold else None
            return None
        if now - self._start > self._longest:
            span = self._cut(now)
            self._quiet = now if chance < rules.low_threshold and self._start is not None else None
            return span
        if chance >= rules.low_threshold:
            return None
        self._quiet = now if self._quiet is None else self._quiet
        return self._end(self._quiet) if now - self._quiet >= rules.min_silence else None

    def finish(self, total: int) -> tuple[int, int] | None:
        """The span that goes on when the sound ends after `total` samples."""
        if self._start is None or total - self._start <= self._rules.min_speech:
            return None
        return self._padded(self._start), total

    def _end(self, end: int) -> tuple[int, int] | None:
        """Speech is over since `end`; it is no span if it was too short."""
        assert self._start is not None
        long_enough = end - self._start > self._rules.min_speech
        span = self._span(end, self._rules.padding) if long_enough else None
        self._start, self._quiet, self._pauses = None, None, []
        return span

    def _cut(self, now: int) -> tuple[int, int]:
        """Speech lasts too long: it is cut in the middle of its longest pause, or here."""
        end, length = max(self._pauses, key=lambda pause: pause[1], default=(now, WINDOW))
        span = self._span(end, min(self._rules.padding, length // 2))
        self._start, self._pauses = end + length if self._pauses else None, []
        return span

    def _span(self, end: int, padding: int) -> tuple[int, int]:
        assert self._start is not None
        start, self._used = self._padded(self._start), end + padding
        return start, self._used

    def _padded(self, start: int) -> int:
        return max(self._used, start - self._rules.padding, 0)


def cut_speech(blocks: Iterable[Samples], voice: Voice, rules: Rules) -> Iterator[Piece]:
    """The pieces of speech in a sound of 16 kHz, as soon as each is over."""
    cutter, tape = Cutter(rules), Tape()
    heard = 0  # samples whose probabilities are known
    for block in blocks:
        tape.append(block)
        whole = (tape.end - heard) // WINDOW * WINDOW
        for chance in voice.chances(tape.cut(heard, heard + whole)):
            heard += WINDOW
            if span := cutter.take(float(chance)):
                yield tape.piece(*span)
        tape.forget(min(cutter.needed, heard))
    total = tape.end
    if heard < total:
        last = np.zeros(WINDOW, np.float32)
        last[: total - heard] = tape.cut(heard, total)
        if span := cutter.take(float(voice.chances(last)[0])):
            yield tape.piece(*span)
    if span := cutter.finish(total):
        yield tape.piece(*span)


class Tape:
    """The samples of a sound that may still be needed, by their numbers."""

    def __init__(self) -> None:
        self._samples = np.zeros(0, np.float32)
        self._start = 0

    @property
    def end(self) -> int:
        """How many samples there have been."""
        return self._start + len(self._samples)

    def append(self, samples: Samples) -> None:
        """Add samples at the end."""
        self._samples = np.concatenate((self._samples, samples))

    def cut(self, start: int, end: int) -> Samples:
        """A copy of the samples from `start` to `end`, or to the last one."""
        return self._samples[start - self._start : max(end - self._start, 0)].copy()

    def piece(self, start: int, end: int) -> Piece:
        """The samples from `start` to `end` with their place."""
        end = min(end, self.end)
        return Piece(start, end, self.cut(start, end))

    def forget(self, before: int) -> None:
        """Drop the samples before this one."""
        self._samples = self._samples[max(before - self._start, 0) :]
        self._start = max(self._start, before)
