"""What the process uses: CPU time by part, and memory."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

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


def process_facts() -> Iterator[tuple[str, str, str, float]]:
    """What Prometheus's own clients tell of a process, where it is known: name, kind, help, value."""
    yield "process_cpu_seconds_total", "counter", "CPU time of this process", time.process_time()
    yield "process_start_time_seconds", "gauge", "when it was started, in seconds since 1970", _started()
    if (nbytes := resident()) is not None:
        yield "process_resident_memory_bytes", "gauge", "its memory", nbytes
    if sys.platform == "linux":
        virtual = _first("/proc/self/statm", 0) * os.sysconf("SC_PAGE_SIZE")
        yield "process_virtual_memory_bytes", "gauge", "its address space", virtual
        yield "process_threads", "gauge", "its threads", _entries("/proc/self/task")
    if sys.platform != "win32":
        import resource

        folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
        yield "process_open_fds", "gauge", "its open files and connections", _entries(folder) - 1
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield "process_max_fds", "gauge", "how many it may have", float(most)


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


@cache
def _started() -> float:
    """When the process was started; where that is not known, when it was asked first."""
    try:
        ticks = int(Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()[19])
        lines = Path("/proc/stat").read_text("utf-8").splitlines()
        booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return time.time()


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
