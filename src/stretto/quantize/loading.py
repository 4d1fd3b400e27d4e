"""Models that are quantised while they are loaded: the file stays as it is.

    with QuantisedFile(open_weights("Qwen3-0.6B"), "q4_k") as file:
        file.tensors["blk.0.ffn_up.weight"].format       # Format.Q4_K

A tensor is quantised when a backend reads it, and only the last one is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from stretto.quantize.mixes import find_mix
from stretto.quantize.model import choose_tensors
from stretto.weights.fingerprint import Fingerprint
from stretto.weights.gguf import GGUF
from stretto.weights.made_tensor import Kept
from stretto.weights.tensor import Tensor


class QuantisedFile(GGUF):
    """An open model in the formats of a mix."""

    def __init__(self, file: GGUF, mix: str, threads: int | None = None) -> None:
        chosen = find_mix(mix, "quantize")
        self.source = file
        self.quantised_as = chosen.name
        self.path, self.version, self.alignment = file.path, file.version, file.alignment
        self.metadata = file.metadata
        self._kept = Kept()
        self.tensors = choose_tensors(file, chosen, threads=threads, kept=self._kept, at_load=True)

    @property
    def files(self) -> tuple[Path, ...]:
        """The paths of the source's files."""
        return self.source.files

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def file_of(self, tensor: Tensor) -> Path:
        """The path of the file that holds a tensor's source."""
        return self.source.file_of(self.source.tensors[tensor.name])

    def forget(self, tensor: Tensor | None = None, end: int | None = None) -> None:
        """Let the system evict the pages of a tensor's source, or of all files."""
        if tensor is None:
            self.source.forget()
        elif tensor.name in self.source.tensors:
            self.source.forget(self.source.tensors[tensor.name])

    def read_ahead(self, wanted: bool) -> None:
        """Let the system read pages before they are asked for, as it does by itself, or only then."""
        self.source.read_ahead(wanted)

    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the source and the mix."""
        return QuantisedFingerprint(self.source.fingerprint(), self.quantised_as)

    def close(self) -> None:
        """Close the source; data that is still referenced stays."""
        self.source.close()
        self.tensors = {}
        self._kept.clear()


class QuantisedFingerprint(Fingerprint):
    """The fingerprint of a file, and of what is made of it."""

    def __init__(self, source: Callable[[], str], mix: str) -> None:
        super().__init__([])
        self._source, self._mix = source, mix

    def __call__(self) -> str:
        """The fingerprint, as text."""
        return hashlib.sha256(f"{self._source()} {self._mix}".encode()).hexdigest()
