"""Reads Hugging Face folders: config.json and safetensors files, presented as a GGUF file.

    with Folder("Qwen3-0.6B") as file:
        file.metadata["general.architecture"]                # 'qwen3'
        file.tensors["blk.0.attn_q.weight"].dequantize()

Metadata and tensors have llama.cpp's names (weights/folders has a converter for each kind of model), so what
reads GGUF files reads folders. Tensors are views into the mapped files; those that a GGUF file has in another
order are made when they are read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.errors import ModelError
from stretto.weights.gguf import GGUF
from stretto.weights.json_file import read_bytes, read_object
from stretto.weights.mapped import Fingerprint
from stretto.weights.tensor import Tensor

if TYPE_CHECKING:
    from stretto.weights.given import Given
    from stretto.weights.safetensors import Shard

CONFIG = "config.json"


class Folder(GGUF):
    """An open folder, as a GGUF file: `metadata`, `tensors`, `nbytes`, `files`.

    `encoder`: as the `mmproj` file of its encoder of images or sounds, instead of its language model's file.
    `given`: tensors that take the place of the files' own (weights/given.py).
    """

    def __init__(
        self, path: str | os.PathLike[str], *, encoder: bool = False, given: Given | None = None
    ) -> None:
        from stretto.weights.folders import convert
        from stretto.weights.folders.pooling import dense_modules, sentence_keys
        from stretto.weights.folders.stored import open_shards
        from stretto.weights.folders.towers import convert_tower
        from stretto.weights.given import put_in_shards
        from stretto.weights.metadata import make_metadata

        self.path = Path(path)
        if not (self.path / CONFIG).exists():
            raise ModelError(
                f"is a directory without {CONFIG}; give a GGUF file, or a Hugging Face or ONNX folder",
                path=self.path,
            )
        config = read_object(self.path / CONFIG)
        self._config_bytes = read_bytes(self.path / CONFIG)
        self._shards: list[Shard] = open_shards(self.path)
        self.given = put_in_shards(self._shards, given) if given else []
        self.version, self.alignment = 3, 32
        found = (convert_tower if encoder else convert)(config, self._shards, self.path)
        values: dict[str, Any] = {"general.architecture": found.arch, "general.name": self.path.name}
        values |= {f"{found.arch}.{key}": value for key, value in found.keys.items()}
        values |= found.bare_keys
        if not encoder:
            sentence_keys(self.path, found.arch, values)
            self._shards += dense_modules(self.path, found)
        self.metadata = make_metadata(values, self.path)
        self.tensors = found.tensors
        self._kept = found.kept
        # Tensors that are used as a file has them lie in one of the files, the others in none.
        self._places = {
            name: next(s for s in self._shards if stored.name in s.stored)
            for name, stored in found.used.items()
        }

    @property
    def files(self) -> tuple[Path, ...]:
        """The paths of the safetensors files."""
        return tuple(shard.path for shard in self._shards)

    @property
    def nbytes(self) -> int:
        """The size of all files together."""
        return sum(shard.buffer.nbytes for shard in self._shards)

    def find_file(self, tensor: Tensor) -> Path:
        """The path of the file that holds a tensor; the folder's, if it is made of others."""
        return self._places[tensor.name].path if tensor.name in self._places else self.path

    def forget(self, tensor: Tensor | None = None, end: int | None = None) -> None:
        """Let the system evict the pages of a tensor, up to byte `end` of it, or of all files."""
        if tensor is None:
            for shard in self._shards:
                shard.forget()
        elif tensor.name in self._places:
            self._places[tensor.name].forget(tensor, end)

    def read_ahead(self, wanted: bool) -> None:
        """Let the system read pages before they are asked for, as it does by itself, or only then."""
        for shard in self._shards:
            shard.read_ahead(wanted)

    def fingerprint(self) -> Fingerprint:
        """The folder's fingerprint, of its configuration and all files."""
        parts = [(shard.buffer, list(shard.tensors.values())) for shard in self._shards]
        return Fingerprint([(memoryview(self._config_bytes), []), *parts])

    def close(self) -> None:
        """Close the files; views that are still referenced keep their mapping."""
        for shard in self._shards:
            shard.close()
        self.tensors = {}
        self._kept.clear()

    def __repr__(self) -> str:
        return f"<Folder {str(self.path)!r}: {len(self.tensors)} tensors in {len(self._shards)} files>"


def open_weights(path: str | os.PathLike[str]) -> GGUF:
    """A GGUF file, or a folder in the form of one."""
    return Folder(path) if Path(path).is_dir() else GGUF(path)


def open_encoder(path: str | os.PathLike[str]) -> GGUF:
    """An `mmproj` file, or the encoder of a folder in the form of one."""
    return Folder(path, encoder=True) if Path(path).is_dir() else GGUF(path)
