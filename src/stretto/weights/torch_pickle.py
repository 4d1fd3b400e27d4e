"""The pickle of a PyTorch checkpoint, read opcode by opcode without running it.

    read_pickle(io.BytesIO(data))        # dicts, lists, numbers, and a `Layout` for each tensor

A small machine builds containers and knows how a tensor and a storage are written; everything else that a
pickle may name or call is refused by name.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.errors import ModelError

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

    def tuple_of(self, n: int) -> None:
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
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
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
