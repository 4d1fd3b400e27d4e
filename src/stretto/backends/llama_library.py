"""llama.cpp through `llama-cpp-python`'s low-level functions: a model with one context, and its memory.

As a program it answers the calls of `backends.llama_process`: llama.cpp ends its process at failed assertions
and illegal instructions. A call is a line of JSON, the name of a method and its arguments. The answer is a
line of JSON, with float32 numbers behind it where it names a shape; nothing is unpickled. Everything that
reaches llama.cpp is checked before. Names that older or newer versions lack are left at their defaults.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CacheFull, ModelError, StrettoError, Unsupported

PACKAGE = "llama_cpp"


def missing(device: str = "cpu") -> str:
    """What has to be installed, "" if nothing."""
    return "" if find_spec(PACKAGE) else "llama-cpp-python is not installed: pip install 'stretto[llamacpp]'"


def version() -> str:
    """As "llama-cpp-python 0.3.36"."""
    from importlib.metadata import version as version_of

    return f"llama-cpp-python {version_of('llama-cpp-python')}"


Floats = NDArray[np.float32]
Row = tuple[int, int, int, bool]  # token, position, sequence, whether its output is wanted
SIZES = ("n_ctx", "n_vocab", "n_embd", "n_batch", "n_sequences", "is_recurrent")  # of an open model

BATCH, MICRO_BATCH = 2048, 512
MAX_SEQUENCES, MAX_STATES = 256, 16  # sequences at once; each has a state in recurrent models
MIN_CONTEXT = 512  # it ends the process if a context has fewer tokens than sequences
ERROR_LEVEL = 4  # of its log

_messages: list[str] = []  # the last errors that it logged
_callbacks: list[Any] = []  # referenced for as long as the library may call them


class NoRoom(StrettoError):
    """The library found no room for a batch in its cache; nothing was changed."""


def library() -> Any:
    """The module, initialised, with its log kept instead of printed."""
    if reason := missing():
        raise Unsupported(reason, param="backend", value="llamacpp")
    try:
        import llama_cpp
    except Exception as error:  # its shared library may be for another system
        raise Unsupported(
            f"llama-cpp-python cannot be imported: {type(error).__name__}: {error}", param="backend"
        ) from error

    if not _callbacks:
        _callbacks.append(llama_cpp.llama_log_callback(_keep))
        llama_cpp.llama_log_set(_callbacks[0], ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
    return llama_cpp


def _keep(level: int, text: bytes, data: Any) -> None:
    if level == ERROR_LEVEL:
        _messages[:] = [*_messages[-3:], text.decode(errors="replace").strip()]


class Llama:
    """A model and a context of `n_ctx` tokens, with memory that sequences share."""

    def __init__(self, path: Path, n_ctx: int, threads: int, kv: str, repack: bool = True) -> None:
        lc = self._lc = library()
        _messages.clear()
        params = lc.llama_model_default_params()
        params.n_gpu_layers = 0
        _set(params, use_extra_bufts=repack)
        self._model = lc.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise ModelError(f"llama.cpp cannot load it: {_said()}")
        self._context: Any = None
        self._batch: Any = None
        try:
            self._open(n_ctx, threads, kv)
        except BaseException:
            self.close()
            raise

    def _open(self, n_ctx: int, threads: int, kv: str) -> None:
        lc, model = self._lc, self._model
        self._refuse_others()
        self.is_recurrent = self._is("recurrent") or self._is("hybrid")
        most = min(MAX_SEQUENCES, lc.llama_max_parallel_sequences())
        self.n_sequences = min(most, MAX_STATES) if self.is_recurrent else most
        kinds = {"f16": lc.GGML_TYPE_F16, "q8": lc.GGML_TYPE_Q8_0, "f32": lc.GGML_TYPE_F32}
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_seq_max = max(n_ctx, MIN_CONTEXT), self.n_sequences
        params.n_batch, params.n_ubatch = BATCH, MICRO_BATCH
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = kinds[kv]
        # All sequences share one buffer, so that a fork shares cells; nothing is dropped behind a window.
        _set(params, kv_unified=True, swa_full=True, n_outputs_max_per_seq=0)
        self._context = lc.llama_init_from_model(model, params)
        if not self._context:
            raise ModelError(f"llama.cpp cannot open a context of {n_ctx} tokens: {_said()}")
        self._memory = lc.llama_get_memory(self._context)
        self.n_ctx: int = lc.llama_n_ctx(self._context)
        self.n_vocab: int = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
        self.n_embd: int = lc.llama_model_n_embd(model)
        self.n_batch: int = lc.llama_n_batch(self._context)
        self._batch = lc.llama_batch_init(self.n_batch, 0, 1)

    def _refuse_others(self) -> None:
        if self._lc.llama_model_has_encoder(self._model):
            raise Unsupported("the llamacpp backend runs decoders, and this model has an encoder")
        if self._is("diffusion"):
            raise Unsupported("the model generates by diffusion, not token by token")

    def _is(self, kind: str) -> bool:
        function = getattr(self._lc, f"llama_model_is_{kind}", None)
        return bool(function and function(self._model))

    def decode(self, rows: Sequence[Row], hidden: bool = False) -> Floats:
        """Run at most `n_batch` rows; float32[n_wanted, n_vocab], or the final hidden states."""
        lc, batch, context = self._lc, self._batch, self._context
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        lc.llama_set_embeddings(context, hidden)
        status = lc.llama_decode(context, batch)
        if status == 1:
            raise NoRoom("no room")
        if status:
            raise StrettoError(f"llama.cpp failed with status {status}: {_said()}")
        read, width = (
            (lc.llama_get_embeddings_ith, self.n_embd) if hidden else (lc.llama_get_logits_ith, self.n_vocab)
        )
        wanted_rows = [i for i, row in enumerate(rows) if row[3]]
        result = np.empty((len(wanted_rows), width), np.float32)
        for target, i in zip(result, wanted_rows, strict=True):
            target[:] = np.ctypeslib.as_array(read(context, i), (width,))
        return result

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Let `target` share the tokens of `source` at start ≤ position < stop."""
        self._lc.llama_memory_seq_cp(self._memory, source, target, start, stop)

    def remove(self, sequence: int, start: int = 0, stop: int = -1) -> bool:
        """Take tokens out of a sequence; False if that cannot be, as within a recurrent state."""
        return bool(self._lc.llama_memory_seq_rm(self._memory, sequence, start, stop))

    def close(self) -> None:
        """Free everything; closing twice is fine."""
        if self._batch is not None:
            self._lc.llama_batch_free(self._batch)
        if self._context:
            self._lc.llama_free(self._context)
        if self._model:
            self._lc.llama_model_free(self._model)
        self._batch = self._context = self._model = None


def full(n_needed: int, n_ctx: int) -> CacheFull:
    """The error for a batch that llama.cpp has no room for, whatever is evicted."""
    return CacheFull(
        f"llama.cpp has no room for {n_needed} more tokens in its cache of {n_ctx}; close sequences, or load "
        "the model with more cells",
        n_needed=n_needed,
    )


def _set(params: Any, **values: Any) -> None:
    for name, value in values.items():
        if hasattr(params, name):
            setattr(params, name, value)


def _said() -> str:
    return "; ".join(_messages) or "it does not say why"


def main(reader: BinaryIO, writer: BinaryIO) -> None:
    """Answer calls until there are no more; the first one opens the model."""
    llama: Llama | None = None
    for line in reader:
        name, *arguments = json.loads(line)
        try:
            if llama is None:
                llama = Llama(Path(arguments[0]), *arguments[1:])
                value: Any = {size: getattr(llama, size) for size in SIZES}
            else:
                value = getattr(llama, name)(*arguments)
        except Exception as error:  # a caller has to be told of anything
            _answer(writer, {"error": type(error).__name__, "message": str(error)})
        else:
            if isinstance(value, np.ndarray):
                _answer(writer, {"shape": value.shape}, value)
            else:
                _answer(writer, {"value": value})


def _answer(writer: BinaryIO, head: dict[str, Any], numbers: Floats | None = None) -> None:
    writer.write(json.dumps(head).encode() + b"\n")
    if numbers is not None:
        writer.write(numbers.reshape(-1).data)
    writer.flush()


if __name__ == "__main__":
    with suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # whatever a library prints is no answer
        main(sys.stdin.buffer, answers)
