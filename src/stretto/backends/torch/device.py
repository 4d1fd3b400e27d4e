"""The device of a model, and whether our kernels run there."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from stretto.errors import Unsupported
from stretto.hardware.gpus import cuda_devices

Tensor = Any  # torch.Tensor: torch is an extra
INSTALL = "pip install 'stretto[cuda]'"


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def is_interpreting() -> bool:
    """Whether Triton's interpreter runs kernels on the CPU, as tests ask for."""
    return os.environ.get("TRITON_INTERPRET", "") == "1" and has_triton()


def uses_kernels(tensor: Tensor) -> bool:
    """Whether operations on the tensor are our kernels; otherwise they are plain torch."""
    return bool(tensor.is_cuda) or is_interpreting()


def missing(device: str) -> str:
    """What this machine lacks to run models on a device; "" if nothing. It never imports torch."""
    if find_spec("torch") is None:
        return f"torch is not installed: {INSTALL}"
    if device == "cpu":
        return ""
    if not has_triton():
        return f"Triton is not installed: {INSTALL}"
    if not (devices := cuda_devices()):
        return "no CUDA device is visible here"
    major, minor = devices[0].capability
    return "" if major >= 8 else f"compute capability 8.0 is needed, and this GPU has {major}.{minor}"


def open_device(name: str) -> Any:
    """The torch device, or `Unsupported` with what is missing."""
    lack = missing(name)
    if not lack:
        import torch

        if name == "cpu" or torch.cuda.is_available():
            return torch.device(name)
        built = getattr(torch.version, "cuda", None)
        lack = "torch finds no CUDA device" if built else "this torch was built without CUDA"
    raise Unsupported(f"device={name!r}: {lack}; device='cpu' works", param="device", value=name)


def check_cache_type(kv: str, device: Any) -> None:
    """Raise `Unsupported` for a type of K and V that the GPU cannot convert."""
    import torch

    if kv == "fp8" and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < (8, 9):
            raise Unsupported(
                f"kv='fp8' needs compute capability 8.9, and this GPU has {major}.{minor}; kv='q8' takes as "
                "little memory, here and with device='cpu'",
                param="kv",
                value=kv,
            )


@lru_cache(maxsize=8)
def multiprocessors(device: Any) -> int:
    """How many multiprocessors a torch device has; 1 on a CPU."""
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


@lru_cache(maxsize=8)
def is_hopper_or_newer(device: Any) -> bool:
    """Whether a torch device is a GPU of compute capability 9.0 or more.

    Those load tiles by descriptors, launch kernels before the one before has ended, and prefetch in bulk.
    """
    import torch

    return device.type == "cuda" and bool(torch.cuda.get_device_capability(device) >= (9, 0))


def version() -> str:
    """The libraries that compute, and the GPU: figures of others are not theirs."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    found = []
    for name in ("torch", "triton"):
        try:
            found.append(f"{name} {version_of(name)}")
        except PackageNotFoundError:
            continue
    return " ".join(found + [device.name for device in cuda_devices()[:1]])


@contextmanager
def capturing(graph: Any, pool: Any = None) -> Iterator[None]:
    """Capture what the block launches as a CUDA graph, and collect no garbage meanwhile.

    A model that was dropped has graphs, memory and events; to free them during a capture ends the process.
    """
    import torch

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        if was_enabled:
            gc.enable()
