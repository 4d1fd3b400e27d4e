"""Moonshine: English speech to text, an encoder and a decoder with a KV cache, behind Silero VAD.

stretto.load("moonshine").transcribe("talk.wav").text
for segment in stretto.load("moonshine").transcribe(microphone, sample_rate=48_000, stream=True): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stretto.backends.onnx_session import OnnxSession, open_session
from stretto.errors import InvalidRequest
from stretto.tasks.model import Source, TaskModel, each
from stretto.tasks.results import Segment, Transcript
from stretto.tasks.speech.decoder import SpeechDecoder
from stretto.tasks.speech.sound import RATE, Sound, open_sound
from stretto.tasks.speech.voice import Piece, Rules, Samples, Voice, cut_speech

ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"
VOICE, TOKENIZER = "silero_vad_16k_sequence.onnx", "tokenizer.json"
MAX_PIECE_SECONDS = 64  # what the model was trained for
_MIN_PIECE_SAMPLES = RATE // 10
_TOKENS_PER_SECOND = 6.5  # faster speech is the model repeating itself
_MIN_TOKENS = 16


class Moonshine(TaskModel):
    """Writes down English speech; `transcribe` is its verb."""

    verbs = ("transcribe",)
    takes = "audio"

    def __init__(
        self, source: Source, encoder: OnnxSession, decoder: OnnxSession, voice: OnnxSession, tokenizer: Any
    ) -> None:
        super().__init__(source)
        self._encoder = encoder
        self._decoder = SpeechDecoder(decoder)
        self._voice = voice
        self._tokenizer = tokenizer
        self._rules = Rules()

    def transcribe(
        self, audio: Any, *, sample_rate: int | None = None, stream: bool = False, vad: bool = True
    ) -> Any:
        """What is said in a sound, or in each of a list of them.

        A sound is a WAV file's path or bytes, or samples, float32[n], or an iterator of such chunks; samples
        need `sample_rate`. With `stream` one sound is taken, and an iterator of segments returned, each as
        soon as the speaker pauses; chunks may then also be a list, and never end. `vad=False` takes a sound
        of at most 64 seconds as one piece.

        >>> stretto.load("moonshine").transcribe("talk.wav").segments[0]
        Segment(start=0.52, end=3.1, text='Good evening.')
        """
        if stream:
            sound = open_sound(audio, sample_rate, endless=True)
            return (self._segment(piece) for piece in self._pieces(sound, vad, []))
        return each(audio, lambda one: self._transcript(open_sound(one, sample_rate), vad))

    def close(self) -> None:
        """Release the models."""
        for session in (self._encoder, self._voice):
            session.close()
        self._decoder.close()

    def _transcript(self, sound: Sound, vad: bool) -> Transcript:
        counts: list[int] = []
        segments = tuple(self._segment(piece) for piece in self._pieces(sound, vad, counts))
        return Transcript(
            segments=segments, duration=sum(counts) / RATE, model=self.name, license=self.license
        )

    def _pieces(self, sound: Sound, vad: bool, counts: list[int]) -> Iterator[Piece]:
        """The sound's pieces; `counts` gets the number of samples of each of its blocks."""

        def counted() -> Iterator[Samples]:
            for block in sound.at_16_khz():
                counts.append(len(block))
                yield block

        return cut_speech(counted(), Voice(self._voice), self._rules) if vad else _whole(counted())

    def _segment(self, piece: Piece) -> Segment:
        hidden = self._encoder.run({"input_values": piece.samples[None]})["last_hidden_state"]
        most = max(_MIN_TOKENS, int(_TOKENS_PER_SECOND * len(piece.samples) / RATE))
        text = self._tokenizer.decode(self._decoder.generate(hidden, most)).strip()
        return Segment(piece.start / RATE, piece.end / RATE, text)


def open_task(source: Source, device: str, threads: int | None) -> Moonshine:
    """Open the models of the bundle `moonshine`."""
    import tokenizers

    encoder, decoder = (open_session(source.files[name], device, threads) for name in (ENCODER, DECODER))
    voice = open_session(source.files[VOICE], "cpu", 1)  # too small for a device to be worth the way
    return Moonshine(
        source, encoder, decoder, voice, tokenizers.Tokenizer.from_file(str(source.files[TOKENIZER]))
    )


def _whole(blocks: Iterator[Samples]) -> Iterator[Piece]:
    """All of the sound as one piece; nothing if it is shorter than a sound of speech."""
    parts, count = [], 0
    for block in blocks:
        parts.append(block)
        count += len(block)
        if count > MAX_PIECE_SECONDS * RATE:
            raise InvalidRequest(
                f"vad=False is for at most {MAX_PIECE_SECONDS} seconds; with vad=True longer sounds are cut "
                "where the speaker pauses",
                param="vad",
                value=False,
            )
    if count >= _MIN_PIECE_SAMPLES:
        yield Piece(0, count, np.concatenate(parts))
