"""Models in other formats, from a file or folder to a file: tensor by tensor, never half-written."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto import _native
from stretto.errors import InvalidRequest, ModelError
from stretto.hardware import usable_cores
from stretto.quantize.choice import VERSION, Mix, choose_formats, find_format, find_mix, is_quantised
from stretto.quantize.imatrix import ImportanceMatrix
from stretto.weights.formats import READABLE, Format, check_writable
from stretto.weights.gguf import COUNT, GGUF, NUMBER, TENSORS
from stretto.weights.mapped import Fingerprint
from stretto.weights.metadata import ValueType
from stretto.weights.tensor import Kept, Tensor
from stretto.weights.writer import Writable, write_gguf

# Tensors in another format than their file has, made when they are read.

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
PIECE_BYTES = 32 << 20  # of a tensor that are quantised at a time


class QuantisedTensor(Tensor):
    """A tensor in another format.

    `importance` weighs errors, float32[matrices, columns]; `done` is told how many numbers were written;
    `kept` holds the data that was read last, without it nothing is kept.
    """

    def __init__(
        self,
        source: Tensor,
        fmt: Format,
        quantizer: _native.Quantizer,
        importance: Floats | None = None,
        done: Callable[[int], None] | None = None,
        kept: Kept | None = None,
    ) -> None:
        check_writable(fmt)
        if source.format not in READABLE:
            raise ModelError(
                f"{source.format.name} cannot be converted to {fmt.name}", field=f"tensor {source.name!r}"
            )
        fmt.row_bytes(source.shape[-1])
        put = object.__setattr__  # the class is frozen
        put(self, "name", source.name)
        put(self, "shape", source.shape)
        put(self, "format", fmt)
        put(self, "offset", source.offset)
        put(self, "_source", source)
        put(self, "_quantizer", quantizer)
        put(self, "_importance", importance)
        put(self, "_done", done)
        put(self, "_kept", kept)

    _source: Tensor
    _quantizer: _native.Quantizer
    _importance: Floats | None
    _done: Callable[[int], None] | None
    _kept: Kept | None

    @property
    def data(self) -> Bytes:
        """uint8[..., bytes of a row], quantised now unless it was the last to be read."""
        return self._make() if self._kept is None else self._kept.get(self.name, self._make)

    def _make(self) -> Bytes:
        row = self.format.row_bytes(self.shape[-1])
        return np.concatenate(list(self.pieces())).reshape(*self.shape[:-1], row)

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return prod(self.shape[:-1]) * self.format.row_bytes(self.shape[-1])

    def pieces(self) -> Iterator[Bytes]:
        """The bytes of whole rows, piece after piece."""
        columns = self.shape[-1]
        rows = self._source.data.reshape(-1, self._source.format.row_bytes(columns))
        matrices = 1 if self._importance is None else len(self._importance)
        each = len(rows) // matrices
        step = max(1, PIECE_BYTES // rows.shape[1])
        for matrix in range(matrices):
            weights = None if self._importance is None else self._importance[matrix]
            for at in range(matrix * each, (matrix + 1) * each, step):
                piece = rows[at : min(at + step, (matrix + 1) * each)]
                yield self._convert(piece, weights, at)
                if self._done is not None:
                    self._done(len(piece) * columns)

    def _convert(self, rows: Bytes, importance: Floats | None, first: int) -> Bytes:
        try:
            return self._quantizer.convert(
                self._source.format.value,
                np.ascontiguousarray(rows).reshape(-1),
                self.format.value,
                self.shape[-1],
                importance,
            )
        except ValueError as error:
            raise ModelError(
                f"cannot be quantised to {self.format.name}: {error} (rows are counted from {first})",
                field=f"tensor {self.name!r}",
            ) from None


Progress = Callable[[int, int], None]  # numbers that are written, and all of them
PLAIN = frozenset({Format.F32, Format.F16, Format.BF16})
# Formats of two bits and less are of little use without knowing what matters.
NEEDS_IMPORTANCE = frozenset(
    {Format.IQ1_S, Format.IQ1_M, Format.IQ2_XXS, Format.IQ2_XS, Format.IQ2_S, Format.IQ3_XXS}
)


@dataclass(frozen=True)
class Written:
    """A file that was written: its path and size, and how many tensors it has in each format."""

    path: Path
    nbytes: int
    source_bytes: int
    formats: Mapping[str, int]


def quantize_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    mix: str,
    *,
    imatrix: str | os.PathLike[str] | ImportanceMatrix | None = None,
    tensor_types: Sequence[tuple[str, str]] = (),
    pure: bool = False,
    allow_requantize: bool = False,
    replace: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write a GGUF file with its matrices in other formats.

    `mix` names the formats (`stretto.quantize.MIXES`); pairs of a regular expression and a format in
    `tensor_types` decide for the tensors whose names they match. With `imatrix` errors count by how strong
    each input is. A target that exists is refused, unless `replace` is true.

    >>> quantize_model("model-f16.gguf", "model-q4_k_m.gguf", "q4_k_m")
    """
    recipe = make_recipe(mix, imatrix, tensor_types, pure, threads, progress)
    recipe = dataclasses.replace(recipe, allow_requantize=allow_requantize)
    with GGUF(source) as file:
        return write_model(file, target, recipe, file.metadata, types=file.metadata.types, replace=replace)


@dataclass(frozen=True)
class Recipe:
    """How tensors get their formats: a mix, formats by patterns of names, and what errors count.

    `plain_as_float32` widens what is kept as it is.
    """

    mix: Mix
    imatrix: ImportanceMatrix | None = None
    overrides: Sequence[tuple[re.Pattern[str], Format]] = ()
    pure: bool = False
    threads: int | None = None
    progress: Progress | None = None
    allow_requantize: bool = False
    plain_as_float32: bool = False


def make_recipe(
    mix: str,
    imatrix: str | os.PathLike[str] | ImportanceMatrix | None,
    tensor_types: Sequence[tuple[str, str]],
    pure: bool,
    threads: int | None,
    progress: Progress | None,
) -> Recipe:
    """The recipe of what callers give: names and files are read."""
    chosen, types = find_mix(mix), _read_overrides(tensor_types)
    if imatrix is not None and not isinstance(imatrix, ImportanceMatrix):
        imatrix = ImportanceMatrix.read(imatrix)
    return Recipe(chosen, imatrix, types, pure, threads, progress)


def _read_overrides(pairs: Sequence[tuple[str, str]]) -> list[tuple[re.Pattern[str], Format]]:
    """Patterns of names and the formats for them."""
    found = []
    for pattern, name in pairs:
        try:
            found.append((re.compile(pattern), find_format(name)))
        except re.error as error:
            raise InvalidRequest(
                f"{pattern!r} is no regular expression: {error}", param="tensor_types", value=pattern
            ) from None
    return found


def write_model(
    file: GGUF,
    target: str | os.PathLike[str],
    recipe: Recipe,
    metadata: Mapping[str, Any],
    *,
    types: Mapping[str, ValueType] | None = None,
    replace: bool = True,
) -> Written:
    """Write an open model with a recipe's formats and this metadata."""
    path = Path(target).expanduser()
    for part in file.files:
        if path.exists() and part.exists() and path.samefile(part):
            raise InvalidRequest(
                f"{path} is the model itself; choose another name", param="target", value=path
            )
    if not replace and path.exists():
        raise InvalidRequest(
            f"{path} exists; choose another file, or replace it with --force (replace=True)",
            param="target",
            value=path,
        )
    tensors = choose_tensors(file, recipe)
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    _check_space(path, nbytes)
    values = describe(metadata, recipe)
    kept = {key: kind for key, kind in (types or {}).items() if values.get(key) is metadata.get(key)}
    try:
        write_gguf(path, values, _Forgetting(file, tensors), types=kept)
    except OSError as error:
        raise ModelError(f"cannot be written: {error.strerror or error}", path=path) from error
    counts: dict[str, int] = {}
    for tensor in tensors.values():
        counts[tensor.format.name] = counts.get(tensor.format.name, 0) + 1
    return Written(path, path.stat().st_size, file.nbytes, counts)


class _Forgetting(dict[str, Writable]):
    """Tensors whose pages in the source file are given back as the next one is taken."""

    def __init__(self, file: GGUF, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self._file = file

    def values(self) -> Any:
        """The tensors, in order."""
        for name, tensor in self.items():
            yield tensor
            self._file.forget(self._file.tensors[name])


def choose_tensors(
    file: GGUF, recipe: Recipe, kept: Kept | None = None, at_load: bool = False
) -> dict[str, Tensor]:
    """The tensors of a file by a recipe: those that change are made when they are read.

    `at_load` is for errors: the parameter is then `quantize` of `stretto.load`.
    """
    imatrix, progress = recipe.imatrix, recipe.progress
    chosen = choose_formats(
        recipe.mix,
        file.metadata,
        file.tensors,
        has_imatrix=imatrix is not None,
        overrides=recipe.overrides,
        pure=recipe.pure,
    )
    if recipe.plain_as_float32:
        chosen |= {
            name: Format.F32
            for name, tensor in file.tensors.items()
            if chosen[name] is tensor.format and tensor.format in PLAIN and not is_quantised(tensor)
        }
    changed = {name: fmt for name, fmt in chosen.items() if fmt is not file.tensors[name].format}
    if not recipe.allow_requantize:
        _check_sources(file, changed, at_load)
    _check_importance(file, changed, imatrix)
    quantizer = _native.Quantizer(recipe.threads or usable_cores())
    total = sum(prod(file.tensors[name].shape) for name in changed)
    written = 0

    def done(numbers: int) -> None:
        nonlocal written
        written += numbers
        if progress is not None:
            progress(written, total)

    tensors = dict(file.tensors)
    for name, fmt in changed.items():
        weights = None if imatrix is None else imatrix.weights_for(tensors[name])
        tensors[name] = QuantisedTensor(tensors[name], fmt, quantizer, weights, done, kept)
    return tensors


def _check_sources(file: GGUF, changed: Mapping[str, Format], at_load: bool) -> None:
    for name, fmt in changed.items():
        found = file.tensors[name].format
        if found not in PLAIN:
            problem = (
                f"tensor {name!r} of {file.path.name} is {found.name} already, and {fmt.name} of it would "
                "lose twice; start from an F16, BF16 or F32 file, or"
            )
            if at_load:
                raise InvalidRequest(
                    f"{problem} leave quantize out; `stretto quantize --allow-requantize` writes such a file "
                    "nevertheless",
                    param="quantize",
                    value=fmt.name.lower(),
                )
            raise InvalidRequest(
                f"{problem} pass allow_requantize=True (--allow-requantize)",
                param="allow_requantize",
                value=False,
            )


def _check_importance(file: GGUF, changed: Mapping[str, Format], imatrix: ImportanceMatrix | None) -> None:
    for name, fmt in changed.items():
        spared = name in ("output.weight", "token_embd.weight", "per_layer_token_embd.weight")
        if fmt in NEEDS_IMPORTANCE and not spared and (imatrix is None or name not in imatrix.inputs):
            raise InvalidRequest(
                f"tensor {name!r} in {fmt.name} needs an importance matrix"
                f"{'' if imatrix is None else ', and the one given does not have it'}; make one with "
                f"`stretto imatrix {file.path.name} TEXT --out FILE`, and pass it as imatrix (--imatrix)",
                param="imatrix",
            )


def _check_space(path: Path, nbytes: int) -> None:
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise ModelError(f"cannot be written: {error.strerror or error}", path=path) from None
    if free < nbytes:
        raise ModelError(
            f"needs {nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free there; make room, or choose "
            "another place",
            path=path,
        )


def describe(metadata: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """The metadata of a model by a recipe: as it was, with its formats and without its parts."""
    values = {key: value for key, value in metadata.items() if key not in (NUMBER, COUNT, TENSORS)}
    values |= {"general.quantization_version": VERSION, "general.file_type": recipe.mix.file_type}
    if (imatrix := recipe.imatrix) is not None:
        values |= {
            "quantize.imatrix.file": imatrix.path,
            "quantize.imatrix.dataset": " ".join(imatrix.datasets),
            "quantize.imatrix.entries_count": len(imatrix.inputs),
            "quantize.imatrix.chunks_count": imatrix.chunks,
        }
    return values


# Models that are quantised while they are loaded: the file stays as it is.
#
#     with QuantisedFile(open_weights("Qwen3-0.6B"), "q4_k") as file:
#         file.tensors["blk.0.ffn_up.weight"].format       # Format.Q4_K
#
# A tensor is quantised when a backend reads it, and only the last one is kept.


class QuantisedFile(GGUF):
    """An open model in the formats of a mix."""

    def __init__(self, file: GGUF, mix: str, threads: int | None = None) -> None:
        chosen = find_mix(mix, "quantize")
        self.source = file
        self.quantised_as = chosen.name
        self.path, self.version, self.alignment = file.path, file.version, file.alignment
        self.metadata = file.metadata
        self._kept = Kept()
        self.tensors = choose_tensors(file, Recipe(chosen, threads=threads), self._kept, at_load=True)

    @property
    def files(self) -> tuple[Path, ...]:
        """The paths of the source's files."""
        return self.source.files

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def find_file(self, tensor: Tensor) -> Path:
        """The path of the file that holds a tensor's source."""
        return self.source.find_file(self.source.tensors[tensor.name])

    def forget(self, tensor: Tensor | None = None, end: int | None = None) -> None:
        """Let the system evict the pages of a tensor's source, or of all files."""
        if tensor is None:
            self.source.forget()
        elif tensor.name in self.source.tensors:
            self.source.forget(self.source.tensors[tensor.name])

    def read_ahead(self, wanted: bool) -> None:
        """Let the system read pages before they are asked for, as it does by itself, or only then."""
        self.source.read_ahead(wanted)

    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the source and the mix."""
        return QuantisedFingerprint(self.source.fingerprint(), self.quantised_as)

    def close(self) -> None:
        """Close the source; data that is still referenced stays."""
        self.source.close()
        self.tensors = {}
        self._kept.clear()


class QuantisedFingerprint(Fingerprint):
    """The fingerprint of a file, and of what is made of it."""

    def __init__(self, source: Callable[[], str], mix: str) -> None:
        super().__init__([])
        self._source, self._mix = source, mix

    def __call__(self) -> str:
        """The fingerprint, as text."""
        return hashlib.sha256(f"{self._source()} {self._mix}".encode()).hexdigest()
