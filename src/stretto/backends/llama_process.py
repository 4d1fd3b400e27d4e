"""llama.cpp in a process of its own: where it aborts, a call raises `LibraryEnded`, and the caller goes on.

    llama = LlamaProcess(path, n_ctx=8192, threads=8, kv="f16")
    llama.decode([(token, position, sequence, True)])       # float32[1, n_vocab]

Only `backends.llamacpp` uses this module; `backends.llama_library` is the program that it runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from stretto.backends import llama_library
from stretto.backends.llama_library import Floats, NoRoom, Row, missing, version
from stretto.errors import ModelError, StrettoError, Unsupported

END_SECONDS = 10.0  # to free a model; killed after that
LAST_BYTES, LAST_LINES = 4096, 2  # of what it printed before it ended
MAX_HEAD_BYTES = 1 << 16


class LibraryEnded(StrettoError):
    """The process of llama.cpp ended by itself: a failed assertion, an illegal instruction, no memory."""


class LlamaProcess:
    """`llama_library.Llama` in another process, with the same methods. Thread-safe."""

    n_ctx: int
    n_vocab: int
    n_embd: int
    n_batch: int
    n_sequences: int
    is_recurrent: bool

    def __init__(self, path: Path, n_ctx: int, threads: int, kv: str, repack: bool = True) -> None:
        if reason := missing():
            raise Unsupported(reason, param="backend", value="llamacpp")
        self._path = path
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", llama_library.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # No debugger is started for a backtrace; no module is imported from the working directory.
            env={**os.environ, "GGML_NO_BACKTRACE": "1", "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # the terminal's Ctrl-C is for us
        )
        # One thread talks to it: an interrupted caller leaves no answer half read.
        self._talker = ThreadPoolExecutor(1, thread_name_prefix="llama.cpp")
        self._end = weakref.finalize(self, _end, self.process, self._talker, self._log)
        self.n_vocab = self.n_embd = 0
        try:
            sizes = self._call("open", os.fspath(path), n_ctx, threads, kv, repack)
            for name in llama_library.SIZES:
                setattr(self, name, int(sizes[name]))
        except BaseException:
            self.close()
            raise

    def decode(self, rows: Sequence[Row], hidden: bool = False) -> Floats:
        """Run at most `n_batch` rows; float32[n_wanted, n_vocab], or the final hidden states."""
        shape = (sum(row[3] for row in rows), self.n_embd if hidden else self.n_vocab)
        result: Floats = self._call("decode", rows, hidden, shape=shape)
        return result

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Let `target` share the tokens of `source` at start ≤ position < stop."""
        self._call("copy", source, target, start, stop)

    def remove(self, sequence: int, start: int = 0, stop: int = -1) -> bool:
        """Take tokens out of a sequence; False if that cannot be, as within a recurrent state."""
        return bool(self._call("remove", sequence, start, stop))

    def close(self) -> None:
        """End the process; closing twice is fine."""
        self._end()

    def _call(self, *call: Any, shape: tuple[int, int] | None = None) -> Any:
        if not self._end.alive:
            raise StrettoError("the model is closed")
        head, numbers = self._talker.submit(_exchange, self.process, call, shape).result()
        if numbers is not None:
            return numbers
        if "value" in head:
            return head["value"]
        if "error" in head:
            raise self._error(str(head["error"]), str(head.get("message")))
        raise self._ended()

    def _error(self, name: str, message: str) -> StrettoError:
        if name == "ModelError":
            return ModelError(message, path=self._path)
        if name == "Unsupported":
            return Unsupported(f"{self._path}: {message}", param="backend", value="llamacpp")
        if name == "NoRoom":
            return NoRoom(message)
        return StrettoError(message if name == "StrettoError" else f"llama.cpp: {name}: {message}")

    def _ended(self) -> LibraryEnded:
        """The error for a process that is not there any more, with its last words."""
        status = _wait(self.process)
        try:
            how = f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            how = f"ended with status {status}"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LAST_BYTES))
        lines = self._log.read().decode(errors="replace").split("\n")
        last = " ".join([line.strip() for line in lines if line.strip()][-LAST_LINES:])
        how += f": {last}" if last else ""
        remedy = "a build for this processor" if "SIGILL" in how else "another version, or another file"
        return LibraryEnded(
            f"{self._path}: llama.cpp ({version()}) {how}; load the model again. "
            f"If that repeats itself, it needs {remedy}",
            param="backend",
            value="llamacpp",
        )


def _exchange(
    process: subprocess.Popen[bytes], call: tuple[Any, ...], shape: tuple[int, int] | None
) -> tuple[dict[str, Any], Floats | None]:
    """Send a call and read its answer, with numbers of that shape; ({}, None) if the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError, EOFError, ValueError):
        process.stdin.write(json.dumps(call).encode() + b"\n")
        process.stdin.flush()
        head = json.loads(process.stdout.readline(MAX_HEAD_BYTES))
        if "shape" not in head:
            return head, None
        if shape is not None and head["shape"] == list(shape):
            return head, _read(process.stdout, shape)
    return {}, None


def _read(reader: IO[bytes], shape: tuple[int, int]) -> Floats:
    result = np.empty(shape, np.float32)
    view, done = result.reshape(-1).data.cast("B"), 0
    while done < len(view):
        if not (n := reader.readinto(view[done:])):  # type: ignore[attr-defined]
            raise EOFError
        done += n
    return result


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The status of a process that ends, or is killed when it does not."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(END_SECONDS)
    process.kill()
    return process.wait()


def _end(process: subprocess.Popen[bytes], talker: ThreadPoolExecutor, log: IO[bytes]) -> None:
    """End the process, which frees the model when there are no more calls."""
    talker.shutdown()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
    _wait(process)
    log.close()
