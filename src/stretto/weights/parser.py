"""The parser of a GGUF file's head, for untrusted files.

The layout (versions 2 and 3, little-endian): magic, version, number of tensors, number of keys; the keys
with their typed values; for each tensor its name, shape, format and offset; padding; the tensors' bytes.
Every length is compared with the bytes that are left before it is used, in Python's unbounded integers, so
that nothing can overflow, and no memory is allocated for a length that the file only claims.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np

from stretto import _native
from stretto.errors import ModelError
from stretto.weights.formats import Format
from stretto.weights.metadata import LENGTH, SCALARS, Metadata, Strings, Value, ValueType
from stretto.weights.tensor import Tensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # where the file does not say

# Bounds far above any real file, so that a hostile one cannot take long.
MAX_NAME_BYTES = 65_535
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_STRINGS = 1 << 24  # in all arrays together
MAX_DEPTH = 8  # arrays of arrays
MAX_DIMENSIONS = 4

HEADER = Struct("<4sIQQ")
_U32 = Struct("<I")
_CUT = "cut off or damaged; fetch it again"
_ARRAY = Struct("<IQ")


class Parser:
    """One pass from the first byte to the last field of the last tensor.

    After `parse()`: `version`, `alignment`, `metadata`, `tensors`.
    """

    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, Tensor]

    def __init__(self, buffer: memoryview, path: Path) -> None:
        self.path = path
        self.buffer = buffer
        self.size = buffer.nbytes
        self.offset = 0
        self.field = "header"
        self.strings_left = MAX_STRINGS

    def parse(self) -> None:
        """Parse the head, or raise `ModelError` with offset and field."""
        n_tensors, n_keys = self._read_header()
        self.metadata = self._read_metadata(n_keys)
        self.alignment = self._read_alignment()
        infos = [self._tensor_info(index) for index in range(n_tensors)]
        start = -(-self.offset // self.alignment) * self.alignment
        self.tensors = self._locate(infos, start)

    def _error(self, message: str, offset: int | None = None) -> ModelError:
        where = self.offset if offset is None else offset
        return ModelError(message, path=self.path, offset=where, field=self.field)

    # -- primitives: every read of the buffer goes through `take` --

    def _take(self, nbytes: int) -> int:
        """Skip `nbytes` bytes, and return their offset."""
        start = self.offset
        if nbytes > self.size - start:
            left = self.size - start
            raise self._error(f"{nbytes} bytes are announced, {max(left, 0)} are left: {_CUT}")
        self.offset = start + nbytes
        return start

    def _unpack(self, struct: Struct) -> Any:
        return struct.unpack_from(self.buffer, self._take(struct.size))

    def _count(self, number: int, limit: int, least: int, what: str) -> int:
        """A count of elements, of which each takes at least `least` bytes."""
        if number > limit or number * least > self.size - self.offset:
            raise self._error(
                f"{number} {what} are announced, more than "
                + (
                    f"the {limit} allowed"
                    if number > limit
                    else f"{self.size - self.offset} bytes can hold: {_CUT}"
                )
            )
        return number

    def _string(self, limit: int | None = None) -> str:
        (length,) = self._unpack(LENGTH)
        if limit is not None and length > limit:
            raise self._error(f"a name of {length} bytes, more than the {limit} allowed")
        start = self._take(length)
        try:
            return str(self.buffer[start : self.offset], "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"not UTF-8: {error}", start) from None

    # -- header --

    def _read_header(self) -> tuple[int, int]:
        magic = bytes(self.buffer[:4])
        if magic != MAGIC:
            raise self._error(f"not a GGUF file: it begins with {magic!r}, not {MAGIC!r}{_hint(self.buffer)}")
        _, version, n_tensors, n_keys = self._unpack(HEADER)
        if version not in VERSIONS:
            raise self._error(_version_message(version), offset=4)
        self.version = version
        # A tensor: name length, dimensions, format, offset. A key: length, type, a byte of value.
        self._count(n_tensors, MAX_TENSORS, 8 + 4 + 4 + 8, "tensors")
        self._count(n_keys, MAX_KEYS, 8 + 4 + 1, "keys")
        return n_tensors, n_keys

    # -- metadata --

    def _read_metadata(self, n_keys: int) -> Metadata:
        values: dict[str, Value] = {}
        types: dict[str, ValueType] = {}
        for index in range(n_keys):
            self.field = f"metadata key {index}"
            start = self.offset
            key = self._string(MAX_NAME_BYTES)
            self.field = f"metadata {key!r}"
            if key in values:
                raise self._error("the key stands in the file twice", start)
            types[key] = self._value_type()
            values[key] = self._value(types[key], depth=0)
        return Metadata(values, types, str(self.path))

    def _value_type(self) -> ValueType:
        start = self.offset
        (code,) = self._unpack(_U32)
        return self._known_type(code, start)

    def _known_type(self, code: int, start: int) -> ValueType:
        try:
            return ValueType(code)
        except ValueError:
            raise self._error(f"value type {code} does not exist", start) from None

    def _value(self, kind: ValueType, depth: int) -> Value:
        if kind is ValueType.STRING:
            return self._string()
        if kind is ValueType.ARRAY:
            return self._array(depth)
        (value,) = self._unpack(SCALARS[kind][0])
        if kind is ValueType.BOOL:
            if value > 1:
                raise self._error(f"a boolean of {value}; 0 or 1 is allowed", self.offset - 1)
            return bool(value)
        return value  # type: ignore[no-any-return]  # an int or a float, as the struct says

    def _array(self, depth: int) -> Value:
        if depth == MAX_DEPTH:
            raise self._error(f"arrays nested more than {MAX_DEPTH} deep")
        start = self.offset
        code, count = self._unpack(_ARRAY)
        kind = self._known_type(code, start)
        if kind is ValueType.STRING:
            return self._string_array(count)
        if kind is ValueType.ARRAY:
            self.strings_left -= self._count(count, self.strings_left, _ARRAY.size, "arrays")
            return [self._array(depth + 1) for _ in range(count)]
        dtype = SCALARS[kind][1]
        start = self._take(count * dtype.itemsize)
        if kind is ValueType.BOOL:
            flags = np.frombuffer(self.buffer, np.uint8, count, start)
            if count and flags.max() > 1:
                raise self._error(f"a boolean of {flags.max()}; 0 or 1 is allowed", start)
        return np.frombuffer(self.buffer, dtype, count, start)

    def _string_array(self, count: int) -> Strings:
        start = self.offset
        self.strings_left -= self._count(count, self.strings_left, LENGTH.size, "strings")
        end = _native.strings_end(np.frombuffer(self.buffer, np.uint8), start, count)
        if end is None:
            raise self._cut_string(start, count)
        self.offset = end
        return Strings(self.buffer, start, count, f"{self.path} {self.field}", end)

    def _cut_string(self, offset: int, count: int) -> ModelError:
        """The error for the first string of an array that is not all there."""
        for index in range(count):
            if offset > self.size - LENGTH.size:
                self.field += f"[{index}]"
                return self._error(f"the array is {_CUT}", min(offset, self.size))
            offset += LENGTH.size + LENGTH.unpack_from(self.buffer, offset)[0]
        self.field += f"[{count - 1}]"
        return self._error(f"the string ends {offset - self.size} bytes behind the end of the file: {_CUT}")

    def _read_alignment(self) -> int:
        self.field = "metadata 'general.alignment'"
        alignment = self.metadata.integer("general.alignment", ALIGNMENT)
        if alignment < 8 or alignment & (alignment - 1):
            raise self._error(f"an alignment of {alignment}; it must be a power of two, at least 8")
        return alignment

    # -- tensors --

    def _tensor_info(self, index: int) -> tuple[str, tuple[int, ...], Format, int]:
        """Name, shape, format and offset from the start of the data."""
        self.field = f"tensor {index}"
        name = self._string(MAX_NAME_BYTES)
        self.field = f"tensor {name!r}"
        (n_dimensions,) = self._unpack(_U32)
        if not 1 <= n_dimensions <= MAX_DIMENSIONS:
            raise self._error(
                f"{n_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed", self.offset - 4
            )
        start = self.offset
        dimensions = self._unpack(Struct(f"<{n_dimensions}Q"))
        if 0 in dimensions:
            raise self._error(f"a dimension of 0 in {list(dimensions)}", start)
        (code,) = self._unpack(_U32)
        try:
            fmt = Format(code)
        except ValueError:
            raise self._error(
                f"number format {code} is unknown; the file may be newer than this version of Stretto",
                self.offset - 4,
            ) from None
        if dimensions[0] % fmt.block:
            message = f"rows of {dimensions[0]} numbers do not divide into {fmt.name}'s blocks of {fmt.block}"
            raise self._error(message, start)
        (offset,) = self._unpack(LENGTH)
        if offset % self.alignment:
            raise self._error(
                f"the data's offset {offset} is not a multiple of {self.alignment}", self.offset - 8
            )
        return name, dimensions[::-1], fmt, offset

    def _locate(self, infos: list[tuple[str, tuple[int, ...], Format, int]], start: int) -> dict[str, Tensor]:
        """The tensors in file order; raises if their bytes are missing or overlap."""
        tensors: dict[str, Tensor] = {}
        ends: list[tuple[int, int, str]] = []
        for name, shape, fmt, relative in infos:
            self.field, self.offset = f"tensor {name!r}", start + relative
            if name in tensors:
                raise self._error("the name stands in the file twice")
            row = fmt.row_bytes(shape[-1])
            nbytes = prod(shape[:-1]) * row
            first = self._take(nbytes)
            view = np.frombuffer(self.buffer, np.uint8, nbytes, first).reshape(*shape[:-1], row)
            tensors[name] = Tensor(name, shape, fmt, first, view)
            ends.append((first, first + nbytes, name))
        ends.sort()
        for (_, end, name), (first, _, other) in pairwise(ends):
            if first < end:
                self.field, self.offset = f"tensor {other!r}", first
                raise self._error(f"its bytes overlap those of {name!r}")
        return tensors


_KNOWN_FILES = {
    b"PK\x03\x04": "a zip archive or a PyTorch checkpoint",
    b"ggml": "a GGML file from before GGUF",
    b"lmgg": "a GGML file from before GGUF, or a model of whisper.cpp",
    b"tjgg": "a GGML file from before GGUF",
    b"fmgg": "a GGML file from before GGUF",
    b"algg": "a LoRA adapter from before GGUF; merge it into its model, and convert that",
    b"FUGG": "a big-endian GGUF file",
    b"vers": "a pointer file of Git LFS; fetch the real one with `git lfs pull`",
}


def _hint(buffer: memoryview) -> str:
    """A hint at the actual kind of the file."""
    magic = bytes(buffer[:4])
    if magic in _KNOWN_FILES:
        return f" (it looks like {_KNOWN_FILES[magic]})"
    if _is_importance_matrix(bytes(buffer[:512])):
        return " (it looks like an importance matrix, which is for quantising a model; give the model itself)"
    return " (it looks like safetensors)" if magic[1:] == b"\0\0\0" else ""


def _is_importance_matrix(head: bytes) -> bool:
    """Whether a file is an imatrix from before GGUF: a count, then a tensor's name with its length."""
    if len(head) < 8:
        return False
    count, length = Struct("<ii").unpack_from(head)
    name = head[8 : 8 + length] if 0 < length <= 256 else b""
    return 0 < count <= MAX_TENSORS and len(name) == length and name.endswith(b".weight") and name.isascii()


def _version_message(version: int) -> str:
    if version == 1:
        return "GGUF version 1 is no longer in use; convert the model again with current tools"
    if version & 0xFFFF == 0:
        return "a big-endian file; convert it to little-endian"
    return f"GGUF version {version} is not known, only {VERSIONS}; is there a newer Stretto?"
