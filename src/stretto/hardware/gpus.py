"""NVIDIA's devices: as its own program lists them, and those that CUDA programs of this process see."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_FIELDS = "name,memory.total,memory.free,driver_version"
_COMMAND = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
_TIMEOUT_SECONDS = 2.0  # a hung driver never answers


@dataclass(frozen=True)
class Gpu:
    """A device. Memory in bytes; None where it has none of its own."""

    name: str
    memory_total: int | None
    memory_free: int | None
    driver: str


def find(command: tuple[str, ...] = _COMMAND, patience: float = _TIMEOUT_SECONDS) -> tuple[Gpu, ...]:
    """The devices of this machine; none if the program is missing, fails or is too slow."""
    import subprocess

    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except (OSError, ValueError):
        return ()
    try:
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        # Hung in the driver it cannot even be killed: it is abandoned, not waited for.
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        if process.stdout:
            process.stdout.close()
        return ()
    return parse(output.decode("utf-8", "replace")) if process.returncode == 0 else ()


def parse(output: str) -> tuple[Gpu, ...]:
    """Parse one device a line; other lines are skipped."""
    gpus = []
    for line in output.splitlines():
        words = [word.strip() for word in line.rsplit(",", 3)]
        if len(words) == 4 and words[0]:
            name, total, free, driver = words
            gpus.append(Gpu(name, _mebibytes(total), _mebibytes(free), driver))
    return tuple(gpus)


def _mebibytes(word: str) -> int | None:
    return int(word) * 2**20 if word.isascii() and word.isdigit() and len(word) < 12 else None


# The GPUs that CUDA programs of this process see, asked of NVIDIA's management library: torch takes
# seconds.
#
# Asking it starts nothing: a process that did may fork, and its children use CUDA. `CUDA_VISIBLE_DEVICES`
# counts, as it does for the programs. A machine without the library, or without a driver, has none.

_TEXT_BYTES = 96
_MEMORY_CLOCK = 2  # of nvmlClockType_t
_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


@dataclass(frozen=True)
class CudaDevice:
    """A GPU: its memory in bytes, its compute capability, as (9, 0), and its memory's bandwidth.

    `bandwidth` is in bytes a second, by clock and width of the memory's bus; 0 where the driver does not say.
    """

    name: str
    memory_total: int
    capability: tuple[int, int]
    bandwidth: float = 0.0


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@lru_cache(maxsize=1)
def cuda_devices() -> tuple[CudaDevice, ...]:
    """The visible devices, in order.

    >>> cuda_devices()
    (CudaDevice(name='NVIDIA H200', memory_total=150754820096, capability=(9, 0)),)
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return ()
    return ask(library, os.environ.get("CUDA_VISIBLE_DEVICES"))


def ask(library: Any, visible: str | None = None) -> tuple[CudaDevice, ...]:
    """The devices by the library; `visible` is a list of numbers or UUIDs, None for all of them."""
    count = ctypes.c_uint()
    try:
        if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return ()
        found = [_device(library, index) for index in range(count.value)]
    except AttributeError:  # a library of that name that is another one
        return ()
    known = [each for each in found if each is not None]
    return tuple(device for _, device in (known if visible is None else _chosen(known, visible)))


def _device(library: Any, index: int) -> tuple[str, CudaDevice] | None:
    """A device with its UUID; None if it does not answer."""
    handle, memory = ctypes.c_void_p(), _Memory()
    name, uuid = (ctypes.create_string_buffer(_TEXT_BYTES) for _ in range(2))
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = (
        library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        or library.nvmlDeviceGetName(handle, name, _TEXT_BYTES)
        or library.nvmlDeviceGetUUID(handle, uuid, _TEXT_BYTES)
        or library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        or library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    )
    if failed:
        return None
    words = name.value.decode("utf-8", "replace")
    device = CudaDevice(words, memory.total, (major.value, minor.value), _bandwidth(library, handle))
    return uuid.value.decode("utf-8", "replace"), device


def _bandwidth(library: Any, handle: Any) -> float:
    """Bytes a second of a device's memory, which gives two words a clock; 0 if it does not say."""
    bits, megahertz = ctypes.c_uint(), ctypes.c_uint()
    try:
        failed = library.nvmlDeviceGetMemoryBusWidth(handle, ctypes.byref(bits)) or (
            library.nvmlDeviceGetMaxClockInfo(handle, _MEMORY_CLOCK, ctypes.byref(megahertz))
        )
    except AttributeError:  # an older library
        return 0.0
    return 0.0 if failed else 2e6 * megahertz.value * bits.value / 8


def _chosen(known: list[tuple[str, CudaDevice]], visible: str) -> list[tuple[str, CudaDevice]]:
    """Those that the variable names; from the first one on that is none, CUDA sees no more."""
    chosen = []
    for word in visible.split(","):
        word = word.strip()
        if word.isdecimal() and int(word) < len(known):
            chosen.append(known[int(word)])
        elif word.startswith("GPU-") and (named := [each for each in known if each[0].startswith(word)]):
            chosen.append(named[0])
        else:
            break
    return chosen
