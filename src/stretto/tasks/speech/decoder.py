"""Greedy decoding with a merged decoder behind an encoder; the KV cache stays with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx_session import OnnxSession
from stretto.errors import ModelError

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
