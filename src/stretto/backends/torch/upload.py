"""Bytes of the file to the device, through pinned memory in large pieces, the next one copied meanwhile."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stretto.backends.torch.device import Tensor

PIECE_BYTES = 64 << 20


def upload(array: NDArray[Any], device: Any) -> Tensor:
    """The array's bytes on the device: uint8, of the array's shape with the last axis in bytes."""
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    shape = (*array.shape[:-1], array.shape[-1] * array.itemsize)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the file's pages are not writable; nobody writes
        source = torch.from_numpy(array.reshape(-1).view(np.uint8))
    if torch.device(device).type != "cuda":
        return source.clone().reshape(shape)
    out = torch.empty(math.prod(shape), dtype=torch.uint8, device=device)
    stages = _stages()
    for i, first in enumerate(range(0, len(source), PIECE_BYTES)):
        buffer, event = stages[i % len(stages)]
        piece = source[first : first + PIECE_BYTES]
        event.synchronize()  # the copy that used this buffer before
        buffer[: len(piece)].copy_(piece)
        out[first : first + len(piece)].copy_(buffer[: len(piece)], non_blocking=True)
        event.record()
    for _, event in stages:
        event.synchronize()  # the next call starts with the first buffer again
    return out.reshape(shape)


@lru_cache(maxsize=1)
def _stages() -> list[tuple[Tensor, Any]]:
    return [
        (torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()) for _ in range(2)
    ]


def release() -> None:
    """Give the pinned memory back, once all is loaded."""
    _stages.cache_clear()
