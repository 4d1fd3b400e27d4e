"""Tensors of an ONNX file: shapes are compared with the bytes that are there; the numbers are not read."""

from __future__ import annotations

from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from stat import S_ISREG
from struct import unpack
from typing import Any

from stretto.errors import ModelError
from stretto.weights.onnx.model import TYPES, ExternalData, OnnxLimits, TensorInfo
from stretto.weights.onnx.wire import Field, Schema, Span, Wire

# Where the tensors of a model lie that are not in its file, for untrusted models.
#
# A location is a path relative to the model's file. It must lead to a file in its folder or below it, as it
# is written and once all links are followed. Downloads are often links to a folder of blobs, so a file
# there is allowed if the model's own file lies there too.

MAX_LOCATION_BYTES = 1024
REMEDY = "give a path within the model's folder, or save the model with its tensors inside"


class ExternalFiles:
    """The files beside a model that its tensors lie in: each is checked once."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.folder = model.parent
        self.roots = {self.folder.resolve(), model.resolve().parent}
        self.sizes: dict[Path, int] = {}  # by path, as given

    def find(self, entries: dict[str, str], nbytes: int, field: str) -> ExternalData:
        """The place that a tensor's entries give, where `nbytes` bytes are expected."""
        unknown = entries.keys() - {"location", "offset", "length", "checksum", "basepath"}
        if unknown:
            raise self._error(f"unknown entries {sorted(unknown)}", field)
        if "basepath" in entries:
            raise self._error(f"a base path {entries['basepath']!r}; {REMEDY}", field)
        path = self._path(entries.get("location", ""), field)
        offset = self._number(entries.get("offset", "0"), f"{field}.offset")
        length = self._number(entries.get("length", str(nbytes)), f"{field}.length")
        size = self._size(path, field)
        if length != nbytes:
            raise self._error(f"{length} bytes, but its shape and type take {nbytes}", f"{field}.length")
        if offset > size or length > size - offset:
            raise self._error(
                f"bytes {offset} to {offset + length}, but {path.name} has {size}; is the download complete?",
                f"{field}.offset",
            )
        return ExternalData(path, offset, length)

    def _path(self, location: str, field: str) -> Path:
        field = f"{field}.location"
        windows, posix = PureWindowsPath(location), PurePosixPath(location)
        if not location or "\0" in location or len(location.encode()) > MAX_LOCATION_BYTES:
            raise self._error(f"no path: {location!r:.100}; {REMEDY}", field)
        if "*" in location:  # ONNX Runtime's own marks for addresses in memory
            raise self._error(f"{location!r} is not a path of a file; {REMEDY}", field)
        if posix.is_absolute() or windows.drive or windows.root:
            raise self._error(f"the absolute path {location!r}; {REMEDY}", field)
        if ".." in posix.parts or ".." in windows.parts:
            raise self._error(f"{location!r} leads out of the model's folder; {REMEDY}", field)
        return self.folder / location

    def _size(self, path: Path, field: str) -> int:
        if path not in self.sizes:
            self.sizes[path] = self._checked_size(path, f"{field}.location")
        return self.sizes[path]

    def _checked_size(self, path: Path, field: str) -> int:
        try:
            real = path.resolve(strict=True)
            status = real.stat()
        except (OSError, RuntimeError, ValueError):
            raise self._error(f"{path.name!r} is not beside the model; fetch that file too", field) from None
        if not any(real.is_relative_to(root) for root in self.roots):
            raise self._error(
                f"{path.name!r} is a link to {real}, out of the model's folder; {REMEDY}", field
            )
        if not S_ISREG(status.st_mode):
            raise self._error(f"{path.name!r} is a folder, pipe or device; a file is needed", field)
        return status.st_size

    def _number(self, text: str, field: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise self._error(f"{text!r:.50} is not a number of bytes", field)
        return int(text)

    def _error(self, message: str, field: str) -> ModelError:
        return ModelError(message, path=self.model, field=field)


MAX_RANK = 32
MAX_VALUES = 32  # integers that are kept, of tensors that are shapes

TENSOR: Schema = {
    1: Field("dims", "ints"),
    2: Field("data_type", "int"),
    3: Field("segment", "span"),
    4: Field("float_data", "floats"),
    5: Field("int32_data", "ints"),
    6: Field("string_data", "span", many=True),
    7: Field("int64_data", "ints"),
    8: Field("name", "text"),
    9: Field("raw_data", "span"),
    10: Field("double_data", "doubles"),
    11: Field("uint64_data", "ints"),
    13: Field("external_data", "span", many=True),
    14: Field("data_location", "int"),
}
SPARSE: Schema = {1: Field("values", "span"), 2: Field("indices", "span"), 3: Field("dims", "ints")}
ENTRY: Schema = {1: Field("key", "text"), 2: Field("value", "text")}

# Where numbers of a type are, when they are not raw bytes; all others are in int32_data.
LISTS = {
    "float32": "float_data",
    "complex64": "float_data",
    "float64": "double_data",
    "complex128": "double_data",
    "int64": "int64_data",
    "uint32": "uint64_data",
    "uint64": "uint64_data",
}
KINDS = {"float_data": "floats", "double_data": "doubles"}
EXTERNAL = 1


class TensorReader:
    """Reads the tensors of one file, and adds up what they take."""

    def __init__(self, wire: Wire, limits: OnnxLimits) -> None:
        self.wire = wire
        self.limits = limits
        self.files = ExternalFiles(wire.path)
        self.n_tensors = 0
        self.total = 0

    def read(self, span: Span, where: str) -> TensorInfo:
        """One tensor, once its bytes are known to be there."""
        raw = self.wire.read(span, TENSOR, where)
        name = raw.get("name", "")
        field = f"tensor {name!r:.200}" if name else where
        kind, bits = self._type(raw.get("data_type", 0), field)
        shape = self.shape(raw.get("dims", []), field)
        n = prod(shape)
        nbytes = (n * bits + 7) // 8
        if "segment" in raw:
            raise self.wire.error("a part of a tensor; save it as a whole", field)
        if raw.get("data_location", 0) == EXTERNAL:
            return self._external(raw, name, kind, shape, nbytes, field)
        if "raw_data" in raw and kind != "string":
            start, stop = raw["raw_data"]
            if stop - start != nbytes:
                raise self.wire.error(f"{stop - start} bytes, but {kind}{list(shape)} takes {nbytes}", field)
        else:
            nbytes = max(nbytes, self._check_list(raw, kind, bits, n, shape, field))
        self.add(nbytes, field)
        return TensorInfo(name, kind, shape, nbytes, None, self._values(raw, kind, n, field))

    def read_sparse(self, span: Span, where: str) -> TensorInfo:
        """A sparse tensor; what it takes is what it takes when it is dense, as runtimes make it."""
        raw = self.wire.read(span, SPARSE, where)
        if "values" not in raw or "indices" not in raw:
            raise self.wire.error("a sparse tensor without values or indices", where)
        values, indices = self.read(raw["values"], where), self.read(raw["indices"], where)
        field = f"sparse tensor {values.name!r:.200}"
        shape = self.shape(raw.get("dims", []), field)
        bits = dict(TYPES.values())[values.type]
        if indices.type != "int64" or len(values.shape) != 1 or indices.shape[:1] != values.shape:
            raise self.wire.error(f"indices {indices.type}{list(indices.shape)} for its values", field)
        nbytes = (prod(shape) * bits + 7) // 8
        self.add(nbytes, field)
        return TensorInfo(values.name, values.type, shape, nbytes)

    def add(self, nbytes: int, field: str) -> None:
        """Count a tensor; raise when there are too many, or too large ones."""
        self.n_tensors += 1
        self.total += nbytes
        if self.n_tensors > self.limits.tensors:
            raise self.wire.error(f"more than {self.limits.tensors} tensors", field)
        if self.total > self.limits.weight_bytes:
            raise self.wire.error(
                f"tensors of {self.total} bytes together, more than the limit of {self.limits.weight_bytes}; "
                "raise weight_bytes of OnnxLimits if the model is that large",
                field,
            )

    def shape(self, dims: list[Span | int], field: str) -> tuple[int, ...]:
        """The sizes of a tensor: none may be negative."""
        shape = self.wire.integers(dims, MAX_RANK, f"{field}.dims")
        if any(size < 0 for size in shape):
            raise self.wire.error(f"the shape {list(shape)} has a negative size", f"{field}.dims")
        return shape

    def _type(self, number: int, field: str) -> tuple[str, int]:
        if number not in TYPES:
            raise self.wire.error(f"data type {number} is not known; known are 1 to {max(TYPES)}", field)
        return TYPES[number]

    def _external(
        self, raw: dict[str, Any], name: str, kind: str, shape: tuple[int, ...], nbytes: int, field: str
    ) -> TensorInfo:
        if kind == "string" or any(key.endswith("_data") and key != "external_data" for key in raw):
            raise self.wire.error(f"{kind} numbers both in the file and beside it, or texts beside it", field)
        entries: dict[str, str] = {}
        for span in raw.get("external_data", []):
            entry = self.wire.read(span, ENTRY, field)
            key = entry.get("key", "")
            if key in entries:
                raise self.wire.error(f"the entry {key!r} is there twice", f"{field}.external_data")
            entries[key] = entry.get("value", "")
        place = self.files.find(entries, nbytes, field)
        self.add(nbytes, field)
        return TensorInfo(name, kind, shape, nbytes, place)

    def _check_list(
        self, raw: dict[str, Any], kind: str, bits: int, n: int, shape: tuple[int, ...], field: str
    ) -> int:
        """Raise unless a typed list has as many numbers as the shape says; return the bytes of texts."""
        if kind == "string":
            texts = raw.get("string_data", [])
            if len(texts) != n:
                raise self.wire.error(f"{len(texts)} texts, but the shape {list(shape)} takes {n}", field)
            return sum(stop - start for start, stop in texts)
        name = LISTS.get(kind, "int32_data")
        expected = 2 * n if kind.startswith("complex") else n
        if bits < 8:
            expected = -(-n * bits // 8)
        given = self.wire.count(raw.get(name, []), KINDS.get(name, "ints"), f"{field}.{name}")
        if given != expected:
            raise self.wire.error(f"{given} numbers, but {kind}{list(shape)} takes {expected}", field)
        return 0

    def _values(self, raw: dict[str, Any], kind: str, n: int, field: str) -> tuple[int, ...] | None:
        """The numbers of a short list of integers, as shapes are."""
        if kind not in ("int64", "int32") or n > MAX_VALUES:
            return None
        if "raw_data" in raw:
            start, stop = raw["raw_data"]
            return unpack(f"<{n}{'q' if kind == 'int64' else 'i'}", self.wire.buffer[start:stop])
        return self.wire.integers(raw.get(LISTS.get(kind, "int32_data"), []), MAX_VALUES, field)
