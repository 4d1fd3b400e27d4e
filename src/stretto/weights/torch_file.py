"""Tensors of a PyTorch checkpoint (`.pth`, `.pt`, `.bin`), without PyTorch and without running its pickle.

    tensors = read_torch("model.pth")        # {name: array}

Such a file is a pickle, and unpickling runs what the file says. Here its opcodes are only
read (torch_pickle.py): nothing is imported, and nothing is called.

Both forms are read: the zip archive of PyTorch 1.6 and later, and the older one, pickles and then storages.
Sizes are compared with the bytes that are there before an array is made.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights.torch_pickle import Layout, Storage, read_pickle

MAX_FILE_BYTES = 8 << 30
MAX_PICKLE_BYTES = 64 << 20

Array = NDArray[Any]

_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError)


def read_torch(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The tensors of a checkpoint by their names; entries that are no tensors are left out.

    >>> read_torch("efficientnet-lite0.pth")["_fc.bias"].shape
    (1000,)
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelError(f"has more than {MAX_FILE_BYTES:,} bytes", path=path)
        data = path.read_bytes()
        if zipfile.is_zipfile(io.BytesIO(data)):
            layouts, stored = _read_zip(data)
        else:
            layouts, stored = _read_stream(data)
        return {name: _array(name, layout, stored) for name, layout in layouts.items()}
    except ModelError as error:
        raise error if error.path else ModelError(str(error), path=path) from None
    except FileNotFoundError:
        raise ModelError("no such file", path=path) from None
    except _DAMAGE as error:
        raise ModelError(f"is damaged, or no checkpoint of PyTorch: {error}", path=path) from error


def _read_zip(data: bytes) -> tuple[dict[str, Layout], dict[str, Array]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = set(archive.namelist())
        names = [name for name in members if name.endswith("/data.pkl")]
        if len(names) != 1:
            raise ModelError(f"has {len(names)} members data.pkl instead of one")
        folder = names[0].removesuffix("data.pkl")

        def member(name: str, limit: int) -> bytes:
            info = archive.getinfo(name)
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
                raise ModelError(f"{name!r:.100} is compressed, or larger than {limit} bytes")
            return archive.read(info)

        if f"{folder}byteorder" in members and member(f"{folder}byteorder", 16) != b"little":
            raise ModelError("was written on a big-endian machine; save it again on another")
        layouts = _layouts(read_pickle(io.BytesIO(member(names[0], MAX_PICKLE_BYTES))))
        stored: dict[str, Array] = {}
        for storage in {layout.storage.key: layout.storage for layout in layouts.values()}.values():
            name = f"{folder}data/{storage.key}"
            if name not in members:
                raise ModelError(f"lacks the storage {name!r:.100}")
            stored[storage.key] = _numbers(storage, member(name, len(data)))
    return layouts, stored


def _read_stream(data: bytes) -> tuple[dict[str, Layout], dict[str, Array]]:
    """Magic number, version, system, the object, keys of its storages; then a count and bytes for each."""
    stream = io.BytesIO(data)
    _, _, system = (read_pickle(stream) for _ in range(3))
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise ModelError("was written on a big-endian machine; save it again on another")
    layouts = _layouts(read_pickle(stream))
    keys = read_pickle(stream)
    storages = {layout.storage.key: layout.storage for layout in layouts.values()}
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ModelError("has no list of its storages")
    if not storages.keys() <= set(keys):
        raise ModelError("lacks storages of its tensors")
    stored: dict[str, Array] = {}
    for key in keys:
        storage = storages.get(key)
        if storage is None:
            raise ModelError(f"has a storage {key!r:.100} of no tensor")
        (n,) = struct.unpack("<q", stream.read(8))
        nbytes = storage.n * _itemsize(storage.type)
        if n != storage.n or nbytes > len(data) - stream.tell():
            raise ModelError(
                f"storage {key!r:.100} has {n} numbers in the file and {storage.n} in its tensor"
            )
        stored[key] = _numbers(storage, stream.read(nbytes))
    return layouts, stored


def _layouts(made: object) -> dict[str, Layout]:
    """The tensors of what the pickle describes; a checkpoint may have them under "state_dict"."""
    if isinstance(made, dict) and isinstance(made.get("state_dict"), dict):
        made = made["state_dict"]
    if not isinstance(made, dict):
        raise ModelError("holds no dict of tensors; save model.state_dict()")
    return {
        name: value for name, value in made.items() if isinstance(name, str) and isinstance(value, Layout)
    }


def _numbers(storage: Storage, data: bytes) -> Array:
    if len(data) != storage.n * _itemsize(storage.type):
        raise ModelError(f"storage {storage.key!r:.100} has {len(data)} bytes for {storage.n} numbers")
    if storage.type == "bfloat16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, storage.type)


def _itemsize(kind: str) -> int:
    return 2 if kind == "bfloat16" else np.dtype(kind).itemsize


def _array(name: str, layout: Layout, stored: Mapping[str, Array]) -> Array:
    numbers = stored[layout.storage.key]
    n = prod(layout.shape)
    last = layout.offset + sum(
        (size - 1) * step for size, step in zip(layout.shape, layout.strides, strict=True)
    )
    if n > len(numbers) or (n and last >= len(numbers)):
        raise ModelError(f"tensor {name!r:.100} of {layout.shape} reaches beyond its {len(numbers)} numbers")
    steps = [step * numbers.itemsize for step in layout.strides]
    return np.lib.stride_tricks.as_strided(numbers[layout.offset :], layout.shape, steps).copy()
