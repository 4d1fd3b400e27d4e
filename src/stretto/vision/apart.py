"""Images decoded in processes of their own: a hostile file ends such a process at most.

    pool = DecodingPool(2)
    pool.decode(data, max_pixels)       # uint8[height, width, 3]; from any thread

A process starts with the first image and stays. It has limits on CPU time and memory (vision/worker.py); one
that goes beyond them, or does not answer in time, is ended, and the next image gets another.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import IO

import numpy as np

from stretto.errors import InvalidRequest
from stretto.vision.decode import Pixels
from stretto.vision.worker import ANSWER, CPU_SECONDS, PIXELS, REQUEST

WALL_SECONDS = 60.0  # for an image: the CPU time that it may take, on a machine that does other things too
MAX_MESSAGE_BYTES = 1 << 16


class DecodingPool:
    """Up to n processes that decode images. Thread-safe; callers beyond n wait."""

    def __init__(self, n: int) -> None:
        self._room = threading.BoundedSemaphore(n)
        self.idle: SimpleQueue[_Process] = SimpleQueue()
        self._pid = os.getpid()
        atexit.register(self.close)

    def decode(self, data: bytes, max_pixels: int) -> Pixels:
        """uint8[height, width, 3] of a file; `InvalidRequest` if it is no image, or takes too much."""
        with self._room:
            process = self._take()
            try:
                pixels = process.decode(data, max_pixels)
            except InvalidRequest:
                self.idle.put(process)
                raise
            except BaseException as error:
                process.end()
                if isinstance(error, (OSError, EOFError)):
                    raise InvalidRequest(
                        f"the image takes more than {CPU_SECONDS:g} s or too much memory to decode; save it "
                        "again as PNG, or make it smaller",
                        param="image",
                    ) from None
                raise
            self.idle.put(process)
            return pixels

    def _take(self) -> _Process:
        with suppress(Empty):
            while True:
                process = self.idle.get_nowait()
                if process.is_running:
                    return process
                process.end()
        return _Process()

    def close(self) -> None:
        """End the processes that wait for work."""
        if os.getpid() == self._pid:  # in a forked child they are not its own
            with suppress(Empty):
                while True:
                    self.idle.get_nowait().end()


class _Process:
    """One process."""

    def __init__(self) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "stretto.vision.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C at the terminal is for the server
        )

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def decode(self, data: bytes, max_pixels: int) -> Pixels:
        """One image; `OSError` or `EOFError` if the process ends."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        timer = threading.Timer(WALL_SECONDS, self.popen.kill)
        timer.daemon = True
        timer.start()
        try:
            self.popen.stdin.write(REQUEST.pack(len(data), max_pixels))
            self.popen.stdin.write(data)
            self.popen.stdin.flush()
            return read_answer(self.popen.stdout, max_pixels)
        finally:
            timer.cancel()

    def end(self) -> None:
        """Kill it, if it runs, and wait for its end."""
        self.popen.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            with suppress(OSError):  # what was to be written has no reader any more
                if pipe is not None:
                    pipe.close()
        self.popen.wait()


def read_answer(reader: IO[bytes], max_pixels: int) -> Pixels:
    """Pixels, or the worker's refusal. A file may have taken the worker over: its answer is checked."""
    status, width, height, nbytes = ANSWER.unpack(_exactly(reader, ANSWER.size))
    if status != PIXELS:
        raise InvalidRequest(
            _exactly(reader, min(nbytes, MAX_MESSAGE_BYTES)).decode(errors="replace"), param="image"
        )
    if not (width and height and width * height <= max_pixels and nbytes == 3 * width * height):
        raise EOFError
    return np.frombuffer(_exactly(reader, nbytes), np.uint8).reshape(height, width, 3)


def _exactly(reader: IO[bytes], n: int) -> bytearray:
    data = bytearray(n)
    view, done = memoryview(data), 0
    while done < n:
        k = reader.readinto(view[done:])  # type: ignore[attr-defined]
        if not k:
            raise EOFError
        done += k
    return data
