"""Weights as the native decoder takes them.

They are packed into the layout the kernels want, a piece at a time, without losing a bit: on loading, or if
there are many, between passes (`Packing`). With `repack=False` kernels read the rows of the file where they
are mapped: slower in decoding, the same bits, for files larger than memory. With `repack="shared"` they are
packed into a file that all processes map (weights/packed_file.py). Matrices of adapters come in a format that
suits the matrix they change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto import _native
from stretto.backends.matrices import Matrices, Rows
from stretto.errors import ModelError, Unsupported
from stretto.hardware import kernel_sets
from stretto.models.parts import Rope
from stretto.models.spec import ModelSpec
from stretto.weights.adapters import Pair
from stretto.weights.formats import Format, dequantize, quantize
from stretto.weights.gguf import GGUF
from stretto.weights.hub.store import Store
from stretto.weights.mapped import check_maps, list_maps
from stretto.weights.packed_file import PackedMatrix, packed_file
from stretto.weights.tensor import Tensor

# A model's spec as the native code takes it: dictionaries, which csrc/bindings/config.cpp reads.


def checked_spec(spec: ModelSpec) -> dict[str, Any]:
    """The spec for the native code; `Unsupported` for a model that it cannot run."""
    plain = plain_spec(spec)
    try:
        _native.check_spec(plain)
    except ValueError as error:
        raise Unsupported(
            f"the native backend cannot run this model: {error}; backend='reference' may"
        ) from error
    return plain


def plain_spec(spec: ModelSpec) -> dict[str, Any]:
    """The spec for the native code: dictionaries, with each distinct rope once.

    All fields are in it, so that the native code can refuse those it does not know.
    """
    ropes: list[Rope] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Rope):
            if value not in ropes:
                ropes.append(value)
            return ropes.index(value)
        if is_dataclass(value):
            named = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
            return {"part": type(value).__name__} | named
        return [plain(each) for each in value] if isinstance(value, tuple) else value

    found: dict[str, Any] = plain(spec)
    # Frequencies have been chosen by length; what a rope has not is left out.
    found["ropes"] = [
        {
            field.name: plain(value)
            for field in fields(rope)
            if field.name != "by_length" and (value := getattr(rope, field.name)) is not None
        }
        for rope in ropes
    ]
    return found


Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Shape = tuple[str, int, int]  # of a matrix: its name, rows and columns

PANEL_ROWS = 16  # that are packed together
PIECE_BYTES = 8 << 20  # of a matrix that are packed at a time
DEFERRED_BYTES = 256 << 20  # of a file; larger ones are packed while the model can be used already

# Tensors of which only rows are read, one for each token: they stay in the file.
LOOKED_UP = frozenset({"per_layer_token_embd", "position_embd"})
FLOATS = frozenset({Format.F32, Format.F16, Format.BF16})
PACKABLE = frozenset(Format(code) for code in _native.dequantizable)


def load_weights(
    decoder: _native.Decoder, file: GGUF, spec: ModelSpec, repack: bool, is_shared: bool
) -> dict[str, Format]:
    """Give a decoder all tensors that it needs; return the formats of its matrices."""
    matrices, tensors = Matrices(file, spec), decoder.tensors()
    file.read_ahead(repack)  # vectors stand between matrices, which are not to be read yet
    for name, rows, columns in tensors:
        if not columns:
            tensor, numbers = matrices.vector(name, rows)
            decoder.set_vector(name, numbers)
            file.forget(tensor)
    file.read_ahead(True)
    wanted = [(name, rows, columns) for name, rows, columns in tensors if columns]
    mapped: dict[str, PackedMatrix] = {}
    is_deferred = file.nbytes >= DEFERRED_BYTES and not file.quantised_as
    if is_shared:
        packed = [shape for shape in wanted if repack and not _is_looked_up(shape[0], spec)]
        mapped = shared_matrices(file, lambda: _pack_apart(decoder.threads, file, spec, matrices, packed))
    formats = {}
    for name, rows, columns in wanted:
        if name in mapped:
            matrix = mapped[name]
            formats[name] = Format(matrix.code)
            decoder.set_packed(name, matrix.code, matrix.rows, matrix.columns, matrix.data)
        else:
            found = matrices.rows(name, rows)
            formats[name] = found.format
            _set_matrix(
                decoder, file, found, name, columns, repack and not _is_looked_up(name, spec), is_deferred
            )
    return formats


def renew_weights(
    decoder: _native.Decoder,
    file: GGUF,
    spec: ModelSpec,
    formats: Mapping[str, Format],
    is_new: Callable[[Tensor], bool],
    held: dict[str, Bytes],
) -> str:
    """Replace a decoder's tensors by the new ones of a file, in memory that it has; return their fingerprint.

    Matrices keep their formats. `held` are those that are not packed, which stay the caller's arrays.
    """
    matrices, digest = Matrices(file, spec), sha256()
    for name, rows, columns in decoder.tensors():
        if not columns:
            tensor, numbers = matrices.vector(name, rows)
            if is_new(tensor):
                decoder.set_vector(name, numbers)
                digest.update(name.encode() + b"\0" + numbers.tobytes())
            continue
        found, fmt = matrices.rows(name, rows), formats[name]
        if not is_new(found.tensor):
            continue
        data = found.data
        if found.format is not fmt:
            data = quantize(dequantize(np.ascontiguousarray(data), found.format), fmt)
        flat = np.ascontiguousarray(data).reshape(-1)
        digest.update(name.encode() + b"\0" + flat.data)
        if name in held:
            held[name][:] = flat
        elif _is_looked_up(name, spec):
            held[name] = flat.copy()
            decoder.set_unpacked(name, fmt.value, len(data), columns, held[name])
        else:
            decoder.renew(name)
            decoder.pack_rows(name, fmt.value, len(data), columns, flat, len(data))
    return digest.hexdigest()


def _is_looked_up(name: str, spec: ModelSpec) -> bool:
    """Whether only rows of a matrix are read: an encoder's embeddings too, as it has no logits."""
    return name in LOOKED_UP or (name == "token_embd" and not spec.causal)


class Packing:
    """Packs the deferred matrices of a decoder in a thread, in turns with passes.

    Until a matrix has been packed, passes read its rows in the file; the bits are the same.
    """

    def __init__(self, decoder: _native.Decoder, file: GGUF) -> None:
        self._stop = np.zeros(1, np.uint8)
        self._file: GGUF | None = file
        self._thread = threading.Thread(
            target=self._run, args=(decoder, file), name="stretto-packing", daemon=True
        )
        self.start()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self, decoder: _native.Decoder, file: GGUF) -> None:
        with suppress(MemoryError, ModelError):  # what is left stays in the file, and a broken file known
            decoder.pack_deferred(self._stop)
            file.forget()
            check_maps(list_maps(file.files))
            self._file = None

    def wait(self) -> None:
        """Wait until all are packed."""
        self._thread.join()

    def stop(self) -> None:
        """Leave the rest as it is."""
        self._stop[0] = 1
        if self._thread is not threading.current_thread():
            self._thread.join()


def _pack_apart(
    threads: int, file: GGUF, spec: ModelSpec, matrices: Matrices, wanted: Sequence[Shape]
) -> Iterator[tuple[str, PackedMatrix]]:
    """Matrices as they are packed, in memory that is freed once they have been written."""
    decoder = _native.Decoder(plain_spec(spec), 1, "f16", threads, kernel_sets.select())
    for name, rows, columns in wanted:
        found = matrices.rows(name, rows)
        _set_matrix(decoder, file, found, name, columns, repack=True)
        yield name, PackedMatrix(found.format.value, rows, columns, decoder.packed(name))


def _set_matrix(
    decoder: _native.Decoder,
    file: GGUF,
    rows: Rows,
    name: str,
    columns: int,
    repack: bool,
    is_deferred: bool = False,
) -> None:
    """Rows of the file, as a matrix of a decoder.

    They are packed piece by piece, and each piece's pages freed: the file is never in memory twice. If that
    is deferred, pages are freed matrix by matrix, and passes may bring others back.
    """
    if rows.tensor.format not in PACKABLE:
        raise ModelError(
            f"weights in {rows.tensor.format.name} are read by no backend; make the file again from the "
            "original model, in another format (stretto quantize)",
            path=file.path,
            field=f"tensor {rows.tensor.name!r}",
        )
    n, nbytes = rows.data.shape
    code = rows.format.value
    if not repack:
        decoder.set_unpacked(name, code, n, columns, rows.data.reshape(-1))
        return
    if is_deferred and type(rows.tensor) is Tensor and not rows.is_copy:  # others are made when they are read
        decoder.defer(name, code, n, columns, rows.data.reshape(-1))
        return
    step = max(PANEL_ROWS, PIECE_BYTES // nbytes // PANEL_ROWS * PANEL_ROWS)
    for at in range(0, n, step):
        piece = rows.data[at : at + step]
        decoder.pack_rows(name, code, n, columns, piece.reshape(-1), len(piece))
        if not rows.is_copy:
            file.forget(rows.tensor, end=(rows.first + at + len(piece)) * nbytes)


def as_bytes(pair: Pair) -> tuple[tuple[int, Bytes], tuple[int, Bytes]] | None:
    """Both matrices of a change in Q8_0, the rank made up to whole blocks; None if columns are no blocks."""
    block = Format.Q8_0.block
    if pair.a.shape[1] % block:
        return None
    b = np.pad(pair.b, ((0, 0), (0, -pair.rank % block)))
    a_bytes, b_bytes = (quantize(one, Format.Q8_0).reshape(-1) for one in (pair.a, b))
    return (Format.Q8_0.value, a_bytes), (Format.Q8_0.value, b_bytes)


def narrowest(numbers: Floats) -> tuple[int, Bytes]:
    """Numbers in the smallest format that has all of them exactly: its code, and their bytes."""
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16)
    words = numbers.view(np.uint32)
    if np.array_equal(halves.astype(np.float32), numbers):
        return Format.F16.value, halves.reshape(-1).view(np.uint8)
    if not (words & 0xFFFF).any():
        return Format.BF16.value, (words >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
    return Format.F32.value, np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)


# Matrices of the native decoder that the processes of a machine share (`repack="shared"`).

FOLDER = "packed"  # under the folder of all models


def shared_matrices(
    file: GGUF, make: Callable[[], Iterable[tuple[str, PackedMatrix]]]
) -> dict[str, PackedMatrix]:
    """The packed matrices of a model by name, mapped; packed now if no process has done it before."""
    model, changed = file.files[0], 0
    with suppress(OSError):  # the path may be gone, and the model is still mapped
        changed = model.stat().st_mtime_ns
    key = f"{_native.packed_version} {file.fingerprint()()} {changed} {file.quantised_as}"
    return packed_file(Store.default().home / FOLDER, key, model, file.quantised_as, make).matrices
