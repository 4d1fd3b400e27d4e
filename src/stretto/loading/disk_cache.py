"""The disk cache of a model: where it is, and what the bits of its cells depend on beside their tokens.

The version of our kernels is a hash of the code that computes, so that no change of a kernel can be
forgotten.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from stretto import _native
from stretto.backends.base import Backend
from stretto.backends.placement import DevicePlan
from stretto.cache.disk import DiskStore
from stretto.hardware import kernel_sets
from stretto.options.loading import BY_NAME
from stretto.weights import hub

EXACT = ("native", "reference", "torch")  # backends whose cells do not depend on what else is in a batch
# Folders of the package
COMPUTING = ("audio", "backends", "loading", "models", "quantize", "vision", "weights")
LIBRARIES = ("numpy", "torch", "triton")


def default_folder() -> Path:
    """The user's disk cache: $STRETTO_CACHE_DIR, or `prefixes` in $STRETTO_HOME or ~/.cache/stretto."""
    if folder := os.environ.get("STRETTO_CACHE_DIR"):
        return Path(folder).expanduser()
    return hub.Store.default().home / "prefixes"


def open_store(
    folder: str | os.PathLike[str] | None,
    max_bytes: int = BY_NAME["cache_size"].default,
    max_written: int = BY_NAME["cache_writes"].default,
) -> DiskStore:
    """The store in a folder, or in the default one."""
    return DiskStore(default_folder() if folder is None else folder, max_bytes, max_written)


def can_outlive(backend: Backend) -> bool:
    """Whether a backend's cells can be kept in files, and are the same bits whenever they are computed."""
    return backend.name in EXACT and type(backend).__module__.startswith("stretto.")


def list_versions(files: Iterable[Path]) -> list[str]:
    """Which files these are, and when they were changed: a fingerprint reads a part of each tensor only."""
    found = [(path.resolve(), path.stat()) for path in files]
    return [f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns}" for path, status in found]


def describe_computation(backend: Backend, model: Sequence[str]) -> str:
    """All that the bits of a cell depend on, but adapters, tokens and images."""
    parts = {
        "model": model,
        "spec": repr(backend.spec),
        "backend": backend.name,
        "precision": backend.precision,
        "cells": f"{backend.cell_layout}, {backend.cell_bytes}",
        "states": f"{backend.slot_layout}, {backend.slot_bytes}",
        "kernels": getattr(backend, "kernels", ""),
        "exact": getattr(backend, "exact", True),
        "experts": _describe_experts(backend),
        "device": _device_name(backend),
        "libraries": [
            f"{name} {getattr(sys.modules[name], '__version__', '')}"
            for name in LIBRARIES
            if name in sys.modules
        ],
        "code": _hash_code(),
    }
    return sha256(repr(parts).encode()).hexdigest()


def _describe_experts(backend: Backend) -> str:
    """The layers whose experts a CPU computes beside a GPU, and by which kernels: their bits are others."""
    placement = getattr(backend, "placement", None)
    if not isinstance(placement, DevicePlan) or not placement.cpu_layers:
        return ""
    return f"{placement.cpu_layers} {kernel_sets.select()}"


def _device_name(backend: Backend) -> str:
    device = getattr(backend, "device", "cpu")
    if "cuda" not in str(device):
        return str(device)
    torch = sys.modules["torch"]
    return f"{torch.cuda.get_device_name(device)} {torch.version.cuda}"


@cache
def _hash_code() -> str:
    """The hash of the native core and of the Python code that makes weights and computes with them."""
    package, digest = Path(__file__).parents[1], sha256()
    files = [path for folder in COMPUTING for path in (package / folder).rglob("*")]
    sources = [path for path in files if path.is_file() and path.suffix not in (".pyc", ".pyo")]
    for path in [*sorted(sources), Path(_native.__file__)]:
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()
