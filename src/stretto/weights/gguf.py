"""Reads GGUF files: mapped into memory, checked before anything is believed, copied only when asked for.

    with GGUF("model.gguf") as file:
        file.metadata["general.architecture"]
        file.tensors["token_embd.weight"].dequantize()   # float32[n_vocab, n_embd]

The layout (versions 2 and 3, little-endian): magic, version, number of tensors, number of keys; the keys
with their typed values; for each tensor its name, shape, format and offset; padding; the tensors' bytes.
Every length in there is somebody's claim. Each is compared with the bytes that are left before it is used,
in Python's unbounded integers, so that nothing can overflow and nothing is allocated on a claim alone.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights import formats
from stretto.weights.formats import Format
from stretto.weights.metadata import LENGTH, SCALARS, Metadata, Strings, Value, ValueType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # where the file does not say

# Bounds far above any real file, so that a hostile one cannot keep us busy for long.
MAX_NAME = 65_535
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_STRINGS = 1 << 24  # in all arrays together
MAX_DEPTH = 8  # arrays of arrays
MAX_DIMENSIONS = 4

HEADER = Struct("<4sIQQ")
_U32 = Struct("<I")
_ARRAY = Struct("<IQ")


@dataclass(frozen=True)
class Tensor:
    """A tensor in the file. `shape` is in NumPy's order, rows first; `offset` is that of its first byte."""

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int
    data: NDArray[np.uint8]  # uint8[..., bytes of a row], a view into the mapped file

    @property
    def nbytes(self) -> int:
        """The bytes it takes in the file."""
        return self.data.nbytes

    def dequantize(self) -> NDArray[np.float32]:
        """A float32 copy of shape `shape`."""
        return formats.dequantize(self.data, self.format)


class GGUF:
    """An open GGUF file: `metadata`, `tensors`, `version`, `alignment`, `nbytes`.

    Tensors and arrays are views into the mapped file; they stay valid after `close` for as long as they
    are referenced. Do not truncate a file in place while it is open: replace it, as `stretto pull` does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._buffer = _map(self.path)
        try:
            _Parser(self, self._buffer).parse()
        except BaseException:
            self.close()
            raise

    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return self._buffer.nbytes

    def close(self) -> None:
        """Let go of the file; views that are still referenced keep their mapping."""
        self.tensors = {}
        self._buffer = memoryview(b"")

    def __enter__(self) -> GGUF:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUF {str(self.path)!r}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"


def _map(path: Path) -> memoryview:
    """The file's bytes, read-only, without reading them."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelError("the file is empty; fetch it again", path=path)
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise ModelError("no such file", path=path) from None
    except IsADirectoryError:
        raise ModelError("is a directory; give the path of a .gguf file in it", path=path) from None
    except PermissionError:
        raise ModelError("no permission to read it; check the file's owner and mode", path=path) from None
    except (OSError, ValueError) as error:  # a device, a pipe, a name with a NUL
        raise ModelError(f"cannot be mapped into memory: {error}", path=path) from None


class _Parser:
    """One walk from the first byte to the last claim about the last tensor."""

    def __init__(self, file: GGUF, buffer: memoryview) -> None:
        self.file = file
        self.buffer = buffer
        self.size = buffer.nbytes
        self.offset = 0
        self.field = "header"
        self.strings_left = MAX_STRINGS

    def parse(self) -> None:
        n_tensors, n_keys = self.header()
        self.file.metadata = self.metadata(n_keys)
        self.file.alignment = self.alignment()
        infos = [self.tensor_info(index) for index in range(n_tensors)]
        start = -(-self.offset // self.file.alignment) * self.file.alignment
        self.file.tensors = self.tensors(infos, start)

    def error(self, message: str, offset: int | None = None) -> ModelError:
        where = self.offset if offset is None else offset
        return ModelError(message, path=self.file.path, offset=where, field=self.field)

    # -- the smallest pieces: every read of the buffer goes through `take` --

    def take(self, nbytes: int) -> int:
        """Step over `nbytes` bytes, and say where they began."""
        start = self.offset
        if nbytes > self.size - start:
            left = self.size - start
            raise self.error(f"{nbytes} bytes are announced, {max(left, 0)} are left: cut off or damaged")
        self.offset = start + nbytes
        return start

    def unpack(self, struct: Struct) -> Any:
        return struct.unpack_from(self.buffer, self.take(struct.size))

    def count(self, number: int, limit: int, least: int, what: str) -> int:
        """A number of things of which each takes at least `least` bytes."""
        if number > limit or number * least > self.size - self.offset:
            raise self.error(
                f"{number} {what} are announced, more than "
                + (f"the {limit} allowed" if number > limit else f"{self.size - self.offset} bytes can hold")
            )
        return number

    def string(self, limit: int | None = None) -> str:
        (length,) = self.unpack(LENGTH)
        if limit is not None and length > limit:
            raise self.error(f"a name of {length} bytes, more than the {limit} allowed")
        start = self.take(length)
        try:
            return str(self.buffer[start : self.offset], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"not UTF-8: {error}", start) from None

    # -- header --

    def header(self) -> tuple[int, int]:
        magic = bytes(self.buffer[:4])
        if magic != MAGIC:
            raise self.error(f"not a GGUF file: it begins with {magic!r}, not {MAGIC!r}{_guess(magic)}")
        _, version, n_tensors, n_keys = self.unpack(HEADER)
        if version not in VERSIONS:
            raise self.error(_version_message(version), offset=4)
        self.file.version = version
        # A tensor: name length, dimensions, format, offset. A key: length, type, a byte of value.
        self.count(n_tensors, MAX_TENSORS, 8 + 4 + 4 + 8, "tensors")
        self.count(n_keys, MAX_KEYS, 8 + 4 + 1, "keys")
        return n_tensors, n_keys

    # -- metadata --

    def metadata(self, n_keys: int) -> Metadata:
        values: dict[str, Value] = {}
        types: dict[str, ValueType] = {}
        for index in range(n_keys):
            self.field = f"metadata key {index}"
            start = self.offset
            key = self.string(MAX_NAME)
            self.field = f"metadata {key!r}"
            if key in values:
                raise self.error("the key stands in the file twice", start)
            types[key] = self.value_type()
            values[key] = self.value(types[key], depth=0)
        return Metadata(values, types, str(self.file.path))

    def value_type(self) -> ValueType:
        start = self.offset
        (code,) = self.unpack(_U32)
        return self.known_type(code, start)

    def known_type(self, code: int, start: int) -> ValueType:
        try:
            return ValueType(code)
        except ValueError:
            raise self.error(f"value type {code} does not exist", start) from None

    def value(self, kind: ValueType, depth: int) -> Value:
        if kind is ValueType.STRING:
            return self.string()
        if kind is ValueType.ARRAY:
            return self.array(depth)
        (value,) = self.unpack(SCALARS[kind][0])
        if kind is ValueType.BOOL:
            if value > 1:
                raise self.error(f"a boolean of {value}; 0 or 1 is allowed", self.offset - 1)
            return bool(value)
        return value  # type: ignore[no-any-return]  # an int or a float, as the struct says

    def array(self, depth: int) -> Value:
        if depth == MAX_DEPTH:
            raise self.error(f"arrays nested more than {MAX_DEPTH} deep")
        start = self.offset
        code, count = self.unpack(_ARRAY)
        kind = self.known_type(code, start)
        if kind is ValueType.STRING:
            return self.string_array(count)
        if kind is ValueType.ARRAY:
            self.strings_left -= self.count(count, self.strings_left, _ARRAY.size, "arrays")
            return [self.array(depth + 1) for _ in range(count)]
        dtype = SCALARS[kind][1]
        start = self.take(count * dtype.itemsize)
        if kind is ValueType.BOOL:
            flags = np.frombuffer(self.buffer, np.uint8, count, start)
            if count and flags.max() > 1:
                raise self.error(f"a boolean of {flags.max()}; 0 or 1 is allowed", start)
        return np.frombuffer(self.buffer, dtype, count, start)

    def string_array(self, count: int) -> Strings:
        start = self.offset
        self.strings_left -= self.count(count, self.strings_left, LENGTH.size, "strings")
        # The hot loop of opening a file: a vocabulary has up to a quarter of a million entries.
        buffer, offset, last, unpack = self.buffer, start, self.size - LENGTH.size, LENGTH.unpack_from
        for index in range(count):
            if offset > last:
                self.field += f"[{index}]"
                raise self.error("the array is cut off", min(offset, self.size))
            offset += LENGTH.size + unpack(buffer, offset)[0]
        if offset > self.size:
            self.field += f"[{count - 1}]"
            raise self.error(f"the string ends {offset - self.size} bytes behind the end of the file")
        self.offset = offset
        return Strings(buffer, start, count, f"{self.file.path} {self.field}")

    def alignment(self) -> int:
        self.field = "metadata 'general.alignment'"
        alignment = self.file.metadata.integer("general.alignment", ALIGNMENT)
        if alignment < 8 or alignment & (alignment - 1):
            raise self.error(f"an alignment of {alignment}; it must be a power of two, at least 8")
        return alignment

    # -- tensors --

    def tensor_info(self, index: int) -> tuple[str, tuple[int, ...], Format, int]:
        """Name, shape, format and offset from the start of the data."""
        self.field = f"tensor {index}"
        name = self.string(MAX_NAME)
        self.field = f"tensor {name!r}"
        (n_dimensions,) = self.unpack(_U32)
        if not 1 <= n_dimensions <= MAX_DIMENSIONS:
            raise self.error(f"{n_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed", self.offset - 4)
        start = self.offset
        dimensions = self.unpack(Struct(f"<{n_dimensions}Q"))
        if 0 in dimensions:
            raise self.error(f"a dimension of 0 in {list(dimensions)}", start)
        (code,) = self.unpack(_U32)
        try:
            fmt = Format(code)
        except ValueError:
            raise self.error(
                f"number format {code} is unknown; the file may be newer than this version of Stretto",
                self.offset - 4,
            ) from None
        if dimensions[0] % fmt.block:
            message = f"rows of {dimensions[0]} numbers do not divide into {fmt.name}'s blocks of {fmt.block}"
            raise self.error(message, start)
        (offset,) = self.unpack(LENGTH)
        if offset % self.file.alignment:
            raise self.error(
                f"the data's offset {offset} is not a multiple of {self.file.alignment}", self.offset - 8
            )
        return name, dimensions[::-1], fmt, offset

    def tensors(self, infos: list[tuple[str, tuple[int, ...], Format, int]], start: int) -> dict[str, Tensor]:
        """The tensors in file order, once it is known that their bytes are there, and are theirs alone."""
        tensors: dict[str, Tensor] = {}
        ends: list[tuple[int, int, str]] = []
        for name, shape, fmt, relative in infos:
            self.field, self.offset = f"tensor {name!r}", start + relative
            if name in tensors:
                raise self.error("the name stands in the file twice")
            row = fmt.row_bytes(shape[-1])
            nbytes = prod(shape[:-1]) * row
            first = self.take(nbytes)
            view = np.frombuffer(self.buffer, np.uint8, nbytes, first).reshape(*shape[:-1], row)
            tensors[name] = Tensor(name, shape, fmt, first, view)
            ends.append((first, first + nbytes, name))
        ends.sort()
        for (_, end, name), (first, _, other) in pairwise(ends):
            if first < end:
                self.field, self.offset = f"tensor {other!r}", first
                raise self.error(f"its bytes overlap those of {name!r}")
        return tensors


def _guess(magic: bytes) -> str:
    """A hint at what else the file might be."""
    known = {
        b"PK\x03\x04": "a zip archive or a PyTorch checkpoint",
        b"ggml": "a GGML file from before GGUF",
        b"tjgg": "a GGML file from before GGUF",
        b"fmgg": "a GGML file from before GGUF",
        b"FUGG": "a big-endian GGUF file",
        b"vers": "a pointer file of Git LFS; fetch the real one with `git lfs pull`",
    }
    if magic in known:
        return f" (it looks like {known[magic]})"
    return " (it looks like safetensors)" if magic[1:] == b"\0\0\0" else ""


def _version_message(version: int) -> str:
    if version == 1:
        return "GGUF version 1 is no longer in use; convert the model again with current tools"
    if version & 0xFFFF == 0:
        return "a big-endian file; convert it to little-endian"
    return f"GGUF version {version} is not known, only {VERSIONS}; is there a newer Stretto?"
