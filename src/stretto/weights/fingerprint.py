"""The fingerprint of a model file, without reading its gigabytes."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from struct import pack

from stretto.weights.tensor import Tensor

SAMPLE_BYTES = 4096  # at each end of a tensor

Spans = list[tuple[int, int]]


class Fingerprint:
    """A hash of all of the head, the file's size, and the first and last 4 KiB of every tensor.

    It is computed when it is first asked for, within milliseconds, and depends on the file alone. Until
    then the file stays mapped, so it is that of the model that was loaded, whatever has become of the path.
    That of a split model is a hash over those of its parts.

    >>> GGUF("model.gguf").fingerprint()()
    '5f1a…'
    """

    def __init__(self, parts: Iterable[tuple[memoryview, Iterable[Tensor]]]) -> None:
        self._parts: list[tuple[memoryview, Spans]] = [
            (buffer, [(tensor.offset, tensor.offset + tensor.nbytes) for tensor in tensors])
            for buffer, tensors in parts
        ]
        self._found = ""

    def __call__(self) -> str:
        """The fingerprint, 64 hexadecimal digits."""
        parts = self._parts  # first, since another thread may be about to release it
        if not self._found:
            digests = [_digest(buffer, spans) for buffer, spans in parts]
            found = digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()
            self._found = found
            self._parts = []
        return self._found


def _digest(buffer: memoryview, spans: Spans) -> str:
    """The fingerprint of one file."""
    head = min((first for first, _ in spans), default=buffer.nbytes)
    digest = sha256(pack("<QQ", buffer.nbytes, head))
    digest.update(buffer[:head])
    for first, last in spans:
        digest.update(buffer[first : min(first + SAMPLE_BYTES, last)])
        digest.update(buffer[max(first, last - SAMPLE_BYTES) : last])
    return digest.hexdigest()
