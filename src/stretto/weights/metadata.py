"""The key-value table at the head of a GGUF file, with typed access and errors that name the key."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, TypeVar, Union, overload

import numpy as np
from numpy.typing import NDArray

from stretto import _native
from stretto.errors import ModelError

T = TypeVar("T")


class ValueType(IntEnum):
    """The type codes of the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS: dict[ValueType, tuple[Struct, np.dtype[Any]]] = {
    ValueType.UINT8: (Struct("<B"), np.dtype("u1")),
    ValueType.INT8: (Struct("<b"), np.dtype("i1")),
    ValueType.UINT16: (Struct("<H"), np.dtype("<u2")),
    ValueType.INT16: (Struct("<h"), np.dtype("<i2")),
    ValueType.UINT32: (Struct("<I"), np.dtype("<u4")),
    ValueType.INT32: (Struct("<i"), np.dtype("<i4")),
    ValueType.FLOAT32: (Struct("<f"), np.dtype("<f4")),
    ValueType.BOOL: (Struct("<B"), np.dtype("?")),
    ValueType.UINT64: (Struct("<Q"), np.dtype("<u8")),
    ValueType.INT64: (Struct("<q"), np.dtype("<i8")),
    ValueType.FLOAT64: (Struct("<d"), np.dtype("<f8")),
}
LENGTH = Struct("<Q")


class Strings(Sequence[str]):
    """An array of strings in the file: checked when the file is opened, decoded when first read."""

    def __init__(
        self, buffer: memoryview, offset: int, count: int, field: str, end: int | None = None
    ) -> None:
        self._buffer: memoryview | None = buffer
        self._offset = offset
        self._end = end
        self._count = count
        self._field = field
        self._decoded: list[str] = []

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.decoded()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.decoded())

    def __repr__(self) -> str:
        return f"<{self._count} strings>"

    def raw(self) -> bytes | None:
        """Their bytes as in the file, lengths and texts, unless they were decoded or made."""
        if self._buffer is None or self._end is None:
            return None
        return bytes(self._buffer[self._offset : self._end])

    def decoded(self) -> list[str]:
        """All of them as a list, made once."""
        if self._buffer is not None:
            data = np.frombuffer(self._buffer, np.uint8)
            strings = _native.read_strings(data, self._offset, self._count)
            if len(strings) < self._count:
                raise self._undecodable(self._buffer, len(strings))
            self._decoded, self._buffer = strings, None
        return self._decoded

    def merge_ids(self, merges: Strings) -> NDArray[np.int32] | None:
        """Of each merge ("left right") the numbers of left, right and both together among these strings.

        None unless all are there, each merge has two parts, and neither array was decoded or made.
        """
        if self._buffer is None or merges._buffer is not self._buffer:
            return None
        data = np.frombuffer(self._buffer, np.uint8)
        return _native.merge_ids(data, self._offset, self._count, merges._offset, merges._count)

    def _undecodable(self, buffer: memoryview, index: int) -> ModelError:
        """The error for a string that is not UTF-8."""
        offset = self._offset
        for _ in range(index):
            offset += LENGTH.size + LENGTH.unpack_from(buffer, offset)[0]
        start = offset + LENGTH.size
        field, text = f"{self._field}[{index}]", buffer[start : start + LENGTH.unpack_from(buffer, offset)[0]]
        try:
            str(text, "utf-8")
        except UnicodeDecodeError as error:
            return ModelError(f"not UTF-8: {error}", offset=start, field=field)
        return ModelError("the string is cut off", offset=start, field=field)


Value = Union[int, float, bool, str, Strings, "NDArray[Any]", "list[Any]"]


class Metadata(Mapping[str, Value]):
    """The file's keys and values, in file order.

    Read it as a mapping, or through the typed getters, which raise `ModelError` for a missing key
    (unless a default is given) and for a value of the wrong type:

        file.metadata.integer("llama.block_count")
        file.metadata.text("general.name", "unnamed")
    """

    def __init__(self, values: dict[str, Value], types: dict[str, ValueType], path: str) -> None:
        self._values = values
        self._path = path
        self.types = types

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} keys>"

    def integer(self, key: str, default: int | None = None) -> int:
        """The integer at `key`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The integer or float at `key`, as a float."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """The boolean at `key`."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "a boolean")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """The string at `key`."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def strings(self, key: str) -> list[str]:
        """The array of strings at `key`."""
        value = self._get(key, None)
        if not isinstance(value, Strings):
            raise self._wrong(key, "an array of strings")
        return value.decoded()

    def array(self, key: str) -> NDArray[Any]:
        """The array of numbers at `key`: a view into the file."""
        value = self._get(key, None)
        if not isinstance(value, np.ndarray):
            raise self._wrong(key, "an array of numbers")
        return value

    def _get(self, key: str, default: T | None) -> Value | T:
        if key in self._values:
            return self._values[key]
        if default is None:
            raise ModelError("the key is missing; is this a complete model file?", path=self._path, field=key)
        return default

    def _wrong(self, key: str, wanted: str) -> ModelError:
        given = self.types[key].name.lower()
        return ModelError(f"must be {wanted}, found {given}", path=self._path, field=key)


# Metadata that did not come from a GGUF file: made from Python values, read in the same way.
#
# >>> make_metadata({"bert.block_count": 6, "tokenizer.ggml.tokens": ["a", "b"]}, "folder").strings(TOKENS)
# ['a', 'b']

_TYPES = {
    bool: ValueType.BOOL,
    int: ValueType.INT64,
    float: ValueType.FLOAT64,
    str: ValueType.STRING,
}


class ListedStrings(Strings):
    """An array of strings that is a list already."""

    def __init__(self, strings: Sequence[str]) -> None:
        super().__init__(memoryview(b""), 0, len(strings), "")
        self._decoded, self._buffer = list(strings), None


def make_metadata(values: Mapping[str, Any], path: str | os.PathLike[str]) -> Metadata:
    """Metadata with these values: bool, int, float, str, lists of strings or numbers, and NumPy arrays."""
    made: dict[str, Value] = {}
    for key, value in values.items():
        if isinstance(value, (list, tuple)):
            strings = bool(value) and isinstance(value[0], str)
            made[key] = ListedStrings(value) if strings else np.asarray(value)
        else:
            made[key] = value
    types = {key: _TYPES.get(type(value), ValueType.ARRAY) for key, value in made.items()}
    return Metadata(made, types, os.fspath(path))
