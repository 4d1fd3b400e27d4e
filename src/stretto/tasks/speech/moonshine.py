"""Moonshine: English speech to text, an encoder and a decoder with a KV cache, behind Silero VAD.

stretto.load("moonshine").transcribe("talk.wav").text
for segment in stretto.load("moonshine").transcribe(microphone, sample_rate=48_000, stream=True): ...
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.audio.sound import RATE
from stretto.backends.onnx_session import OnnxSession, open_compiled, open_session
from stretto.errors import ModelError
from stretto.tasks.model import Source
from stretto.tasks.results import Segment
from stretto.tasks.speech.transcriber import VOICE, Transcriber
from stretto.tasks.speech.voice import Samples

# Greedy decoding with a merged decoder behind an encoder; the KV cache stays with ONNX Runtime.

START_TOKEN, END_TOKEN = 1, 2
_PAST, _PRESENT = "past_key_values.", "present."


class SpeechDecoder:
    """A graph with `past_key_values.N.decoder.*` for its own tokens, and `….encoder.*` for what it hears."""

    def __init__(self, session: OnnxSession) -> None:
        self._session = session
        self._pasts = [name for name in session.file.inputs if name.startswith(_PAST)]
        self._own = [name for name in self._pasts if ".decoder." in name]
        missing = [_present(name) for name in self._pasts if _present(name) not in session.file.outputs]
        if missing or not self._own or "logits" not in session.file.outputs:
            raise ModelError(
                f"no decoder with a KV cache: {missing or ['logits', f'{_PAST}…']} are missing",
                path=session.file.path,
            )
        self._place = "cuda" if session.device == "cuda" else "cpu"

    def generate(self, hidden: NDArray[np.float32], most: int) -> list[int]:
        """The most probable tokens for float32[1, n, width], the end token excluded, at most so many.

        The first pass computes K and V of what is heard, which stay for the others; each pass returns its own
        K and V as values of the runtime, which are bound as the inputs of the next without a copy.
        """
        binding = self._session.raw.io_binding()
        binding.bind_cpu_input("encoder_hidden_states", np.ascontiguousarray(hidden, np.float32))
        empty = {name: self._empty(name) for name in self._pasts}
        for name, values in empty.items():
            binding.bind_cpu_input(name, values)
        tokens: list[int] = []
        token, wanted = START_TOKEN, self._pasts
        while len(tokens) < most:
            present = self._step(binding, token, bool(tokens), wanted)
            token = int(present.pop("logits").numpy()[0, -1].argmax())
            if token == END_TOKEN:
                break
            tokens.append(token)
            for name, value in present.items():
                binding.bind_ortvalue_input(name, value)
            wanted = self._own
        return tokens

    def close(self) -> None:
        """Release the graph."""
        self._session.close()

    def _step(self, binding: Any, token: int, is_later: bool, wanted: list[str]) -> dict[str, Any]:
        """One pass: the logits, and for each name of a past what it is next."""
        binding.bind_cpu_input("input_ids", np.asarray([[token]], np.int64))
        binding.bind_cpu_input("use_cache_branch", np.asarray([is_later]))
        binding.clear_binding_outputs()
        binding.bind_output("logits", "cpu")
        for name in wanted:
            binding.bind_output(_present(name), self._place)
        try:
            self._session.raw.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            text = " ".join(str(error).split())
            raise ModelError(
                f"ONNX Runtime cannot compute it: {text:.500}", path=self._session.file.path
            ) from error
        return dict(zip(("logits", *wanted), binding.get_outputs(), strict=True))

    def _empty(self, name: str) -> NDArray[np.float32]:
        """A past of nobody, with the heads and their size from the graph."""
        shape = self._session.file.inputs[name].shape or ()
        if len(shape) != 4 or not all(isinstance(shape[i], int) for i in (1, 3)):
            raise ModelError(f"{name} has the shape {shape}", path=self._session.file.path)
        heads, size = shape[1], shape[3]
        assert isinstance(heads, int)
        assert isinstance(size, int)
        return np.zeros((0, heads, 1, size), np.float32)


def _present(past: str) -> str:
    return _PRESENT + past.removeprefix(_PAST)


ENCODER, DECODER = "encoder_model", "decoder_model_merged"  # .onnx (tiny) or .ort (base)
TOKENIZER = "tokenizer.json"
_TOKENS_PER_SECOND = 6.5  # faster speech is the model repeating itself
_MIN_TOKENS = 16


class Moonshine(Transcriber):
    """Writes down English speech; `transcribe` is its verb."""

    max_piece_seconds = 64  # what the model was trained for

    def __init__(
        self, source: Source, encoder: OnnxSession, decoder: OnnxSession, voice: OnnxSession, tokenizer: Any
    ) -> None:
        super().__init__(source, voice)
        self._encoder = encoder
        self._decoder = SpeechDecoder(decoder)
        self._tokenizer = tokenizer

    def close(self) -> None:
        """Release the models."""
        super().close()
        self._encoder.close()
        self._decoder.close()

    def _write(self, samples: Samples, language: str | None) -> tuple[str, list[Segment]]:
        hidden = self._encoder.run({"input_values": samples[None]})["last_hidden_state"]
        seconds = len(samples) / RATE
        most = max(_MIN_TOKENS, int(_TOKENS_PER_SECOND * seconds))
        text = self._tokenizer.decode(self._decoder.generate(hidden, most)).strip()
        return "en", [Segment(0.0, seconds, text)]


def open_task(source: Source, device: str, threads: int | None) -> Moonshine:
    """Open the models of the bundles `moonshine` and `moonshine-base`."""
    import tokenizers

    encoder, decoder = (_opened(source, name, device, threads) for name in (ENCODER, DECODER))
    voice = open_session(source.files[VOICE], "cpu", 1)  # too small for a device to be worth the way
    return Moonshine(
        source, encoder, decoder, voice, tokenizers.Tokenizer.from_file(str(source.files[TOKENIZER]))
    )


def _opened(source: Source, name: str, device: str, threads: int | None) -> OnnxSession:
    compiled = source.files.get(f"{name}.ort")
    if compiled is not None:
        return open_compiled(compiled, device, threads)
    return open_session(source.files[f"{name}.onnx"], device, threads)
