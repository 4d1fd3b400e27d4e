"""The other end of `workers/lines.py`: a process that loads a model and measures when it is asked."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any

import stretto.bench.workers as workers
from stretto.errors import StrettoError

PROGRAM = Path(workers.__file__).with_name("lines.py")
LOG_BYTES = 400  # of what a process said last, in an error


class Failed(StrettoError):
    """A contestant could not do what it was asked; the message is what it said."""


class Process:
    """`with Process(python, "worker_llamacpp", threads=2) as process: process.ask("load", model=…)`."""

    def __init__(self, python: str, worker: str, threads: int, seconds: float) -> None:
        self._command = [python, str(PROGRAM), worker]
        self._seconds = seconds
        counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        self._environment = {**os.environ, **dict.fromkeys(counts, str(threads))}

    def __enter__(self) -> Process:
        self._log = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=self._environment,
                encoding="utf-8",
            )
        except OSError as error:
            self._log.close()
            raise Failed(f"{self._command[0]} cannot be started: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):  # it ended before it had read all
                stream.close()
        if kind is not None:
            process.kill()
        process.wait()
        self._log.close()

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a request; `Failed` if there is none in time."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = Timer(self._seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise Failed(f"its process ended at {what!r}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(str(answer["error"]))
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
        said = self._log.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"exit status {code}, after at most {self._seconds:.0f} seconds"
