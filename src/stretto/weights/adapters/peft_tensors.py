"""The arrays of a PEFT folder: safetensors, or a pickle that is only read (weights/torch_file.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from stretto.errors import ModelError
from stretto.weights.adapters.lora import Floats, Read, Shape
from stretto.weights.folders.stored import Sources
from stretto.weights.made_tensor import Array, Op
from stretto.weights.safetensors_file import Shard
from stretto.weights.torch_file import read_torch

SAFE, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
FLOATS = ("float16", "float32", "float64")


class Arrays(Protocol):
    """Named arrays of numbers."""

    def names(self) -> list[str]:
        """All names."""
        ...

    def shape(self, name: str) -> Shape:
        """The shape of an array."""
        ...

    def reader(self, name: str, op: Op | None = None) -> Read:
        """What reads an array as float32, its rows moved by `op`."""
        ...


class Shards:
    """Arrays of a safetensors file."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def names(self) -> list[str]:
        """All names."""
        return sorted(self._sources.names())

    def shape(self, name: str) -> Shape:
        """The shape of an array; `ModelError` for types that are not of floats."""
        return self._sources.tensor(name).shape

    def reader(self, name: str, op: Op | None = None) -> Read:
        """What reads an array as float32."""
        tensor = self._sources.tensor(name)
        return lambda: moved(tensor.dequantize().reshape(tensor.shape), op)


class Pickled:
    """Arrays of a checkpoint of PyTorch."""

    def __init__(self, arrays: Mapping[str, Array], path: Path) -> None:
        self._arrays, self._path = arrays, path

    def names(self) -> list[str]:
        """All names."""
        return sorted(self._arrays)

    def shape(self, name: str) -> Shape:
        """The shape of an array; `ModelError` for types that are not of floats."""
        array = self._arrays[name]
        if array.dtype.name not in FLOATS:
            raise ModelError(
                f"numbers of type {array.dtype} are not supported", path=self._path, field=f"tensor {name!r}"
            )
        return array.shape

    def reader(self, name: str, op: Op | None = None) -> Read:
        """What reads an array as float32."""
        return lambda: moved(self._arrays[name].astype(np.float32), op)


def moved(numbers: Floats, op: Op | None) -> Floats:
    """The numbers, with rows in another order if there is one."""
    return numbers if op is None else np.ascontiguousarray(op.apply(numbers), np.float32)


@contextmanager
def open_arrays(folder: Path) -> Iterator[Arrays]:
    """The arrays of a folder's weights."""
    if (folder / SAFE).exists():
        shard = Shard(folder / SAFE)
        try:
            yield Shards(Sources([shard], ()))
        finally:
            shard.close()
    elif (folder / PICKLE).exists():
        yield Pickled(read_torch(folder / PICKLE), folder / PICKLE)
    else:
        raise ModelError(f"has neither {SAFE} nor {PICKLE}; is the folder complete?", path=folder)
