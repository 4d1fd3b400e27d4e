"""Writes GGUF files, for tests and tools.

    write_gguf(
        "tiny.gguf",
        {"general.architecture": "llama", "llama.block_count": 2},
        {"token_embd.weight": Quantized(weights, Format.Q4_1), "output_norm.weight": np.ones(64, np.float32)},
    )

Python values get the type that other tools write: `bool`, `str`, `float` (32 bits), `int` (the first of
uint32, int32, int64, uint64 that holds it), lists. A NumPy scalar or array keeps its own type; `types`
overrides, which is how a file is written again as it was: `write_gguf(path, file.metadata, file.tensors,
types=file.metadata.types)`. `write_split` writes the same as several files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Union

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest
from stretto.weights import formats, parser
from stretto.weights.files import PartName, atomic_write
from stretto.weights.formats import Format
from stretto.weights.metadata import LENGTH, SCALARS, Strings, ValueType
from stretto.weights.tensor import Tensor

_BY_DTYPE = {dtype: kind for kind, (_, dtype) in SCALARS.items()}
_PLAIN = {np.dtype("<f4"): Format.F32, np.dtype("<f2"): Format.F16, np.dtype("<f8"): Format.F64}
_PLAIN |= {np.dtype(f"<i{n}"): Format[f"I{8 * n}"] for n in (1, 2, 4, 8)}
_U32 = SCALARS[ValueType.UINT32][0]


@dataclass(frozen=True)
class Quantized:
    """An array to be written in another format: `Quantized(weights, Format.Q8_0)`."""

    array: NDArray[Any]
    format: Format


Writable = Union["NDArray[Any]", Quantized, Tensor]


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Writable] | None = None,
    *,
    types: Mapping[str, ValueType] | None = None,
    version: int = 3,
) -> None:
    """Write a file that any reader of GGUF reads; `path` appears when all of it is on disk."""
    if version not in parser.VERSIONS:
        raise InvalidRequest(f"version must be one of {parser.VERSIONS}, not {version}")
    alignment = int(metadata.get("general.alignment", parser.ALIGNMENT))
    if alignment < 8 or alignment & (alignment - 1):
        raise InvalidRequest(f"general.alignment must be a power of two, at least 8, not {alignment}")
    types = types or {}
    tensors = tensors or {}
    head = bytearray(parser.HEADER.pack(parser.MAGIC, version, len(tensors), len(metadata)))
    for key, value in metadata.items():
        head += _string(_name(key))
        head += _typed(key, value, types.get(key))

    offset = 0
    for name, tensor in tensors.items():
        shape, fmt = _shape(name, tensor)
        head += _string(_name(name)) + _U32.pack(len(shape))
        head += b"".join(LENGTH.pack(n) for n in reversed(shape))
        head += _U32.pack(fmt) + LENGTH.pack(offset)
        offset += _padded(fmt.row_bytes(shape[-1]) * int(np.prod(shape[:-1], dtype=object)), alignment)

    with atomic_write(path) as file:
        _write(file, (memoryview(head),), alignment)
        for tensor in tensors.values():
            _write(file, _pieces(tensor), alignment)


def write_split(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Writable],
    parts: int,
    *,
    types: Mapping[str, ValueType] | None = None,
) -> list[Path]:
    """Write a model as several files, as llama-gguf-split does; `path` without its suffix is their stem.

    >>> write_split("tiny.gguf", metadata, tensors, 3)
    [PosixPath('tiny-00001-of-00003.gguf'), …]
    """
    target, names = Path(path), list(tensors)
    name = PartName(target.stem, 1, parts, target.suffix)
    share = -(-len(names) // parts)
    written = []
    for number, file in enumerate(name.files):
        keys = {
            **(metadata if number == 0 else {}),
            "split.no": np.uint16(number),
            "split.count": np.uint16(parts),
            "split.tensors.count": np.int32(len(names)),
        }
        chosen = {one: tensors[one] for one in names[number * share : (number + 1) * share]}
        written.append(target.with_name(file))
        write_gguf(written[-1], keys, chosen, types=types)
    return written


def _write(file: BinaryIO, pieces: Iterable[memoryview], alignment: int) -> None:
    length = 0
    for piece in pieces:
        file.write(piece)
        length += piece.nbytes
    file.write(b"\0" * (_padded(length, alignment) - length))


def _pieces(tensor: Writable) -> Iterator[memoryview]:
    """The bytes of a tensor; one that makes them piece by piece is never in memory as a whole."""
    if isinstance(tensor, Tensor) and hasattr(tensor, "pieces"):
        yield from (piece.data for piece in tensor.pieces())
    else:
        yield _data(tensor).data


def _padded(length: int, alignment: int) -> int:
    return -(-length // alignment) * alignment


def _shape(name: str, tensor: Writable) -> tuple[tuple[int, ...], Format]:
    if isinstance(tensor, Tensor):
        return tensor.shape, tensor.format
    if isinstance(tensor, Quantized):
        shape, fmt = tensor.array.shape, tensor.format
    else:
        shape = tensor.shape
        plain = _PLAIN.get(tensor.dtype.newbyteorder("<"))
        if plain is None:
            raise InvalidRequest(
                f"tensor {name!r} has dtype {tensor.dtype}; use float32, float16 or Quantized(array, format)"
            )
        fmt = plain
    if not 1 <= len(shape) <= parser.MAX_DIMENSIONS or 0 in shape:
        dimensions = f"1 to {parser.MAX_DIMENSIONS} dimensions are allowed, none of 0"
        raise InvalidRequest(f"tensor {name!r} has shape {shape}; {dimensions}")
    return shape, fmt


def _data(tensor: Writable) -> NDArray[np.uint8]:
    if isinstance(tensor, Tensor):
        return tensor.data
    if isinstance(tensor, Quantized):
        if tensor.format is Format.F32:
            return _data(tensor.array.astype(np.float32))
        if tensor.format is Format.F16:
            return _data(tensor.array.astype(np.float16))
        return formats.quantize(tensor.array, tensor.format)
    little = np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<"))
    return little.view(np.uint8)


# -- values --


def _name(name: str) -> str:
    if not name or len(name.encode()) > parser.MAX_NAME_BYTES:
        raise InvalidRequest(f"a name must have 1 to {parser.MAX_NAME_BYTES} bytes, not {len(name.encode())}")
    return name


def _string(text: str) -> bytes:
    data = text.encode()
    return LENGTH.pack(len(data)) + data


def _typed(key: str, value: Any, kind: ValueType | None) -> bytes:
    """A value with its type code in front."""
    kind = _kind(key, value) if kind is None else kind
    return _U32.pack(kind) + _value(key, value, kind)


def _kind(key: str, value: Any) -> ValueType:
    if isinstance(value, (bool, np.bool_)):
        return ValueType.BOOL
    if isinstance(value, str):
        return ValueType.STRING
    if isinstance(value, np.generic) and value.dtype.newbyteorder("<") in _BY_DTYPE:
        return _BY_DTYPE[value.dtype.newbyteorder("<")]
    if isinstance(value, float):
        return ValueType.FLOAT32
    if isinstance(value, int):
        for kind in (ValueType.UINT32, ValueType.INT32, ValueType.INT64, ValueType.UINT64):
            info = np.iinfo(SCALARS[kind][1])
            if info.min <= value <= info.max:
                return kind
        raise InvalidRequest(f"{key!r}: {value} does not fit into 64 bits")
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, bytes):
        return ValueType.ARRAY
    raise InvalidRequest(f"{key!r}: a {type(value).__name__} cannot be stored in a GGUF file")


def _value(key: str, value: Any, kind: ValueType, depth: int = 0) -> bytes:
    if kind is ValueType.STRING:
        return _string(value)
    if kind is not ValueType.ARRAY:
        return SCALARS[kind][0].pack(value.item() if isinstance(value, np.generic) else value)
    if depth == parser.MAX_DEPTH:
        raise InvalidRequest(f"{key!r}: arrays may be nested {parser.MAX_DEPTH} deep")
    if isinstance(value, np.ndarray):
        dtype = value.dtype.newbyteorder("<")
        if value.ndim != 1 or dtype not in _BY_DTYPE:
            raise InvalidRequest(f"{key!r}: an array must have one axis and plain numbers, not {value.dtype}")
        return _U32.pack(_BY_DTYPE[dtype]) + LENGTH.pack(len(value)) + value.astype(dtype).tobytes()
    if isinstance(value, Strings) and (raw := value.raw()) is not None:
        return _U32.pack(ValueType.STRING) + LENGTH.pack(len(value)) + raw
    item = _item_kind(key, value)
    values = b"".join(_value(key, element, item, depth + 1) for element in value)
    return _U32.pack(item) + LENGTH.pack(len(value)) + values


def _item_kind(key: str, values: Sequence[Any]) -> ValueType:
    """The common type of all elements. Integers widen to that of the largest; nothing else mixes."""
    if isinstance(values, Strings):
        return ValueType.STRING
    kinds = {_kind(key, value) for value in values}
    if not kinds:
        return ValueType.INT32  # an empty list has no type
    if kinds <= {ValueType.UINT32, ValueType.INT32, ValueType.INT64}:
        small = all(-(2**31) <= int(value) < 2**31 for value in values)
        return ValueType.INT32 if small else ValueType.INT64
    if len(kinds) > 1:
        raise InvalidRequest(f"{key!r}: a list of one type is needed, not {sorted(k.name for k in kinds)}")
    return kinds.pop()
