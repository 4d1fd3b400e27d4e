"""The fingerprint of a model file, without reading its gigabytes."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from struct import pack

from stretto.weights.tensor import Tensor

SAMPLE_BYTES = 4096  # at each end of a tensor


class Fingerprint:
    """A hash of all of the head, the file's size, and the first and last 4 KiB of every tensor.

    It is computed when it is first asked for, within milliseconds, and depends on the file alone. Until
    then the file stays mapped, so it is that of the model that was loaded, whatever has become of the path.

    >>> GGUF("model.gguf").fingerprint()()
    '5f1a…'
    """

    def __init__(self, buffer: memoryview, tensors: Iterable[Tensor]) -> None:
        self._buffer = buffer
        self._spans = [(tensor.offset, tensor.offset + tensor.nbytes) for tensor in tensors]
        self._found = ""

    def __call__(self) -> str:
        """The fingerprint, 64 hexadecimal digits."""
        buffer = self._buffer  # first, since another thread may be about to release it
        if not self._found:
            head = min((first for first, _ in self._spans), default=buffer.nbytes)
            digest = sha256(pack("<QQ", buffer.nbytes, head))
            digest.update(buffer[:head])
            for first, last in self._spans:
                digest.update(buffer[first : min(first + SAMPLE_BYTES, last)])
                digest.update(buffer[max(first, last - SAMPLE_BYTES) : last])
            self._found = digest.hexdigest()
            self._buffer = memoryview(b"")
        return self._found
