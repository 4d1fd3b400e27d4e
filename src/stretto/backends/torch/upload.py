"""Bytes of the file to the device, through pinned memory in large pieces, the next one copied meanwhile."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.torch.device import Tensor

PIECE_BYTES = 64 << 20


def upload(array: NDArray[Any], device: Any) -> Tensor:
    """The array's bytes on the device: uint8, of the array's shape with the last axis in bytes."""
    import torch

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
    import torch

    return [
        (torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()) for _ in range(2)
    ]


def release() -> None:
    """Give the pinned memory back, once all is loaded."""
    _stages.cache_clear()


# Integers on their way to the device: written into pinned memory and copied without waiting.

Ints = NDArray[np.int32]
LEAST_INTEGERS = 1 << 14
BUFFERS = 6  # of a sender: a pass takes up to three, and the next one must not wait for its copies
PIECE = 1024  # integers that copies are rounded up to, so that slices of tensors can be kept


class Host:
    """A buffer of the host that can be written again once its last copy is over."""

    def __init__(self, size: int, is_cuda: bool) -> None:
        import torch

        self.tensor = torch.empty(size, dtype=torch.int32, pin_memory=is_cuda)
        self.array: Ints = self.tensor.numpy()
        self._copied = torch.cuda.Event() if is_cuda else None

    def wait(self) -> None:
        """Wait until the device has read it."""
        if self._copied is not None:
            self._copied.synchronize()

    def mark(self) -> None:
        """A copy from it has been queued."""
        if self._copied is not None:
            self._copied.record()


class Sender:
    """Sends arrays of any size as new tensors: `take` a buffer, fill it, `send`."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._hosts = [Host(LEAST_INTEGERS, device.type == "cuda") for _ in range(BUFFERS)]
        self._current = 0

    def take(self, size: int) -> Ints:
        """int32[at least `size`] to write to."""
        self._current = (self._current + 1) % BUFFERS
        host = self._hosts[self._current]
        host.wait()
        if size > len(host.array):
            host = self._hosts[self._current] = Host(2 * size, self._device.type == "cuda")
        return host.array

    def send(self, size: int) -> Tensor:
        """The first `size` integers of the buffer taken last, on the device."""
        import torch

        host = self._hosts[self._current]
        found = torch.empty(size, dtype=torch.int32, device=self._device)
        found.copy_(host.tensor[:size], non_blocking=True)
        host.mark()
        return found


class Fixed:
    """A tensor of the device whose address never changes, and its buffers on the host."""

    def __init__(self, device: Any, size: int) -> None:
        import torch

        size = -(-size // PIECE) * PIECE
        is_cuda = device.type == "cuda"
        self.tensor = torch.zeros(size, dtype=torch.int32, device=device)
        self._pairs = [(Host(size, is_cuda), dict[int, tuple[Tensor, Tensor]]()) for _ in range(2)]

    def take(self) -> Ints:
        """The whole buffer, to write to."""
        self._pairs.reverse()
        host = self._pairs[0][0]
        host.wait()
        return host.array

    def send(self, size: int) -> None:
        """Copy the first integers of the buffer taken last."""
        host, slices = self._pairs[0]
        pieces = -(-size // PIECE)
        pair = slices.get(pieces)
        if pair is None:
            n = pieces * PIECE
            pair = slices[pieces] = self.tensor[:n], host.tensor[:n]
        pair[0].copy_(pair[1], non_blocking=True)
        host.mark()
