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
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError

# The pickle of a PyTorch checkpoint, read opcode by opcode without running it.
#
#     read_pickle(io.BytesIO(data))        # dicts, lists, numbers, and a `Layout` for each tensor
#
# A small machine builds containers and knows how a tensor and a storage are written; everything else that a
# pickle may name or call is refused by name.

MAX_OPCODES = 5_000_000
MAX_DIMENSIONS = 16

# Types of storages; numbers of bfloat16 are the upper halves of float32.
STORAGES: Mapping[str, str] = {
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "<f8",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
REBUILD = ("torch._utils", "_rebuild_tensor_v2")
PARAMETER = ("torch._utils", "_rebuild_parameter")
ORDERED_DICT = ("collections", "OrderedDict")


@dataclass(frozen=True)
class Name:
    """A class or function that the pickle names."""

    module: str
    name: str


@dataclass(frozen=True)
class Storage:
    """The numbers of one or several tensors: their type, the key of their bytes, and how many there are."""

    type: str
    key: str
    n: int


@dataclass(frozen=True)
class Layout:
    """A tensor: where its numbers are in its storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_pickle(stream: io.BytesIO) -> Any:
    """What the pickle at the stream's position describes; the stream stands behind it afterwards."""
    return _Machine(stream).run()


class _Machine:
    """Reads one pickle from a stream, without calling anything that it names."""

    def __init__(self, stream: io.BytesIO) -> None:
        self._stream = stream
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for count, (opcode, value, _) in enumerate(pickletools.genops(self._stream)):
            if count > MAX_OPCODES:
                raise ModelError(f"its pickle has more than {MAX_OPCODES:,} opcodes")
            if opcode.name == "STOP":
                return self._pop()
            self._step(opcode.name, value)
        raise ModelError("its pickle has no end")

    def _step(self, name: str, value: Any) -> None:
        if name in _PUSHES:
            self._stack.append(value)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _ACTIONS:
            _ACTIONS[name](self, value)
        elif name not in ("PROTO", "FRAME"):
            raise ModelError(f"its pickle has the opcode {name}, which no checkpoint of tensors needs")

    def _pop(self) -> Any:
        if not self._stack or (self._marks and len(self._stack) <= self._marks[-1]):
            raise ModelError("its pickle takes more than it has")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise ModelError("its pickle lacks a mark")
        at = self._marks.pop()
        values = self._stack[at:]
        del self._stack[at:]
        return values

    def mark(self, _: Any) -> None:
        self._marks.append(len(self._stack))

    def push_tuple(self, n: int) -> None:
        values = [self._pop() for _ in range(n)]
        self._stack.append(tuple(reversed(values)))

    def tuple_to_mark(self, _: Any) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def put(self, key: int | None) -> None:
        value = self._pop()
        self._stack.append(value)
        self._memo[len(self._memo) if key is None else key] = value

    def get(self, key: int) -> None:
        if key not in self._memo:
            raise ModelError("its pickle refers to what is not there")
        self._stack.append(self._memo[key])

    def append(self, _: Any) -> None:
        self._extend([self._pop()])

    def appends(self, _: Any) -> None:
        self._extend(self._pop_to_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self._top(list)
        target.extend(values)

    def set_item(self, _: Any) -> None:
        value, key = self._pop(), self._pop()
        self._update([key, value])

    def set_items(self, _: Any) -> None:
        self._update(self._pop_to_mark())

    def _update(self, values: list[Any]) -> None:
        target = self._top(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, (str, int)):
                raise ModelError(f"its pickle has a key of type {type(key).__name__}")
            target[key] = value

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise ModelError(f"its pickle adds to what is no {kind.__name__}")
        return self._stack[-1]

    def global_name(self, text: str) -> None:
        module, _, name = text.partition(" ")
        self._push_name(module, name)

    def stack_global(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        self._push_name(str(module), str(name))

    def _push_name(self, module: str, name: str) -> None:
        known = (module, name) in (REBUILD, PARAMETER, ORDERED_DICT)
        if not known and not (module == "torch" and name in STORAGES):
            raise ModelError(f"its pickle names {module}.{name}, which is not run"[:300])
        self._stack.append(Name(module, name))

    def persistent(self, _: Any) -> None:
        """('storage', type, key, device, number of elements, …)."""
        entry = self._pop()
        fine = isinstance(entry, tuple) and len(entry) >= 5 and entry[0] == "storage"
        if not fine or not isinstance(entry[1], Name) or entry[1].name not in STORAGES:
            raise ModelError("its pickle has a reference that is no storage")
        if not isinstance(entry[2], str) or not _is_size(entry[4]):
            raise ModelError("its pickle has a storage without a key or a size")
        self._stack.append(Storage(STORAGES[entry[1].name], entry[2], entry[4]))

    def reduce(self, _: Any) -> None:
        arguments, called = self._pop(), self._pop()
        if not isinstance(called, Name) or not isinstance(arguments, tuple):
            raise ModelError("its pickle calls what is no function")
        key = (called.module, called.name)
        if key == ORDERED_DICT and not arguments:
            self._stack.append({})
        elif key == PARAMETER and arguments and isinstance(arguments[0], Layout):
            self._stack.append(arguments[0])
        elif key == REBUILD:
            self._stack.append(_layout(arguments))
        else:
            raise ModelError(f"its pickle calls {called.module}.{called.name} with unusual arguments")

    def build(self, _: Any) -> None:
        """The attributes of an object, which for a dict of tensors are its version."""
        self._pop()
        self._top(dict)


def _layout(arguments: tuple[Any, ...]) -> Layout:
    if len(arguments) < 4 or not isinstance(arguments[0], Storage) or not _is_size(arguments[1]):
        raise ModelError("its pickle has a tensor without a storage")
    shape, strides = arguments[2:4]
    for numbers in (shape, strides):
        if not isinstance(numbers, tuple) or len(numbers) > MAX_DIMENSIONS or not all(map(_is_size, numbers)):
            raise ModelError("its pickle has a tensor with an unusual shape")
    if len(shape) != len(strides):
        raise ModelError("its pickle has a tensor with an unusual shape")
    return Layout(arguments[0], arguments[1], shape, strides)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48


_PUSHES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "SHORT_BINSTRING", "BINSTRING"),
}
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_ACTIONS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple_to_mark,
    "TUPLE1": lambda machine, _: machine.push_tuple(1),
    "TUPLE2": lambda machine, _: machine.push_tuple(2),
    "TUPLE3": lambda machine, _: machine.push_tuple(3),
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": _Machine.global_name,
    "STACK_GLOBAL": _Machine.stack_global,
    "BINPERSID": _Machine.persistent,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}


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
    """The tensors of what the pickle describes; a checkpoint may have them under a name of its own."""
    for name in ("state_dict", "model_state_dict"):
        if isinstance(made, dict) and isinstance(made.get(name), dict):
            made = made[name]
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
