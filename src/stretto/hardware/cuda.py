"""The GPUs that CUDA programs of this process see, asked of the driver itself: torch takes seconds to import.

`CUDA_VISIBLE_DEVICES` counts, as it does for the programs. A machine without a driver has none.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_NAME_BYTES = 256
_MAJOR, _MINOR = 75, 76  # attributes of a device: its compute capability


@dataclass(frozen=True)
class CudaDevice:
    """A GPU: its memory in bytes, and its compute capability, as (9, 0)."""

    name: str
    memory_total: int
    capability: tuple[int, int]


@lru_cache(maxsize=1)
def cuda_devices() -> tuple[CudaDevice, ...]:
    """The visible devices, in CUDA's order.

    >>> cuda_devices()
    (CudaDevice(name='NVIDIA H200', memory_total=150110011392, capability=(9, 0)),)
    """
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return ()
    return ask(driver)


def ask(driver: Any) -> tuple[CudaDevice, ...]:
    """What a driver says; nothing if it fails."""
    count = ctypes.c_int()
    try:
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return ()
        found = (_device(driver, index) for index in range(count.value))
        return tuple(device for device in found if device is not None)
    except AttributeError:  # a library of that name that is another one
        return ()


def _device(driver: Any, index: int) -> CudaDevice | None:
    handle, total = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    numbers = ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuDeviceGet(ctypes.byref(handle), index)
        or driver.cuDeviceGetName(name, _NAME_BYTES, handle)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
        or driver.cuDeviceGetAttribute(ctypes.byref(numbers[0]), _MAJOR, handle)
        or driver.cuDeviceGetAttribute(ctypes.byref(numbers[1]), _MINOR, handle)
    )
    if failed:
        return None
    words = name.value.decode("utf-8", "replace")
    return CudaDevice(words, total.value, (numbers[0].value, numbers[1].value))
