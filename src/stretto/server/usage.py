"""What the process uses: CPU time by part, and memory."""

from __future__ import annotations

import os
import threading
import time

HELPER_THREAD_NAME = "stretto-server"  # of the threads that run templates and tokenizers
ENGINE_THREAD_NAME = "stretto"  # of the thread that runs an engine's worker


def cpu_seconds() -> dict[str, float]:
    """CPU time: of the process, the event loop's thread, its helper threads, and the engines' threads.

    The last two are only known on Linux.
    """
    named = [(thread.name, thread.native_id) for thread in threading.enumerate() if thread.native_id]
    return {
        "process": time.process_time(),
        "loop": time.thread_time(),
        "helpers": sum(_seconds(number) for name, number in named if name.startswith(HELPER_THREAD_NAME)),
        "steps": sum(_seconds(number) for name, number in named if name == ENGINE_THREAD_NAME),
    }


def _seconds(thread: int) -> float:
    return _first(f"/proc/self/task/{thread}/schedstat", 0) / 1e9


def resident() -> int | None:
    """Bytes of this process in memory, where that is known."""
    pages = _first("/proc/self/statm", 1)
    return pages * os.sysconf("SC_PAGE_SIZE") if pages else None


def _first(path: str, index: int) -> int:
    """A number in a line, 0 if there is none; read without the layers of a file object, which take longer."""
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return int(os.read(file, 256).split()[index])
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        return 0
