"""What models that write speech down have in common: sound is cut where the speaker pauses.

A model says how long a piece it takes at most, and writes down one piece.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from stretto.audio.sound import RATE, Sound, open_sound
from stretto.backends.onnx_session import OnnxSession
from stretto.errors import InvalidRequest
from stretto.tasks.model import Source, TaskModel, each
from stretto.tasks.results import Segment, Transcript
from stretto.tasks.speech.voice import Piece, Rules, Samples, Voice, cut_speech

VOICE = "silero_vad_16k_sequence.onnx"
MIN_PIECE_SAMPLES = RATE // 10


class Transcriber(TaskModel):
    """Writes down speech; `transcribe` is its verb."""

    verbs = ("transcribe",)
    takes = "audio"
    max_piece_seconds = 30
    languages: tuple[str, ...] = ("en",)

    def __init__(self, source: Source, voice: OnnxSession) -> None:
        super().__init__(source)
        self._voice = voice
        self._rules = Rules()

    def transcribe(
        self,
        audio: Any,
        *,
        sample_rate: int | None = None,
        stream: bool = False,
        vad: bool = True,
        language: str | None = None,
    ) -> Any:
        """What is said in a sound, or in each of a list of them.

        A sound is a WAV file's path or bytes, or samples, float32[n], or an iterator of such chunks; samples
        need `sample_rate`. With `stream` one sound is taken, and an iterator of segments returned, each as
        soon as the speaker pauses; chunks may then also be a list, and never end. `vad=False` takes a sound
        as one piece, of at most as many seconds as the model can. `language` is one of `languages`, as `en`;
        if it is not given, a model of several hears which it is in the first piece.

        >>> stretto.load("moonshine").transcribe("talk.wav").segments[0]
        Segment(start=0.52, end=3.1, text='Good evening.')
        """
        if language is not None and language not in self.languages:
            known = ", ".join(self.languages)
            raise InvalidRequest(
                f"language must be one of {known}, which {self.name} knows, not {language!r:.100}",
                param="language",
                value=language,
            )
        if stream:
            sound = open_sound(audio, sample_rate, endless=True)
            return self._segments(sound, vad, language, [])
        return each(audio, lambda one: self._transcript(open_sound(one, sample_rate), vad, language))

    def close(self) -> None:
        """Release the models."""
        self._voice.close()

    @abstractmethod
    def _write(self, samples: Samples, language: str | None) -> tuple[str, list[Segment]]:
        """The language of a piece, and what is said in it; times are seconds from its beginning."""

    def _write_whole(self, samples: Samples, language: str | None) -> tuple[str, list[Segment]]:
        """As `_write`, of a sound that is not cut where the speaker pauses."""
        return self._write(samples, language)

    def _transcript(self, sound: Sound, vad: bool, language: str | None) -> Transcript:
        counts: list[int] = []
        segments = tuple(self._segments(sound, vad, language, counts))
        return Transcript(
            segments=segments, duration=sum(counts) / RATE, model=self.name, license=self.license
        )

    def _segments(
        self, sound: Sound, vad: bool, language: str | None, counts: list[int]
    ) -> Iterator[Segment]:
        """The segments of all pieces; `counts` gets the number of samples of each of the sound's blocks."""

        def counted() -> Iterator[Samples]:
            for block in sound.at_16_khz():
                counts.append(len(block))
                yield block

        pieces = cut_speech(counted(), Voice(self._voice), self._rules) if vad else self._whole(counted())
        for piece in pieces:
            start = piece.start / RATE
            # A sound has the language of its first piece.
            language, said = (self._write if vad else self._write_whole)(piece.samples, language)
            for one in said:
                yield Segment(round(start + one.start, 7), round(start + one.end, 7), one.text)

    def _whole(self, blocks: Iterator[Samples]) -> Iterator[Piece]:
        """All of the sound as one piece; nothing if it is shorter than a sound of speech."""
        parts, count = [], 0
        for block in blocks:
            parts.append(block)
            count += len(block)
            if count > self.max_piece_seconds * RATE:
                raise InvalidRequest(
                    f"vad=False is for at most {self.max_piece_seconds} seconds; with vad=True longer sounds "
                    "are cut where the speaker pauses",
                    param="vad",
                    value=False,
                )
        if count >= MIN_PIECE_SAMPLES:
            yield Piece(0, count, np.concatenate(parts))
