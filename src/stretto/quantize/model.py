"""Models in other formats, from a file or folder to a file: tensor by tensor, never half-written."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from stretto import _native
from stretto.errors import InvalidRequest, ModelError
from stretto.hardware import usable_cores
from stretto.quantize.choice import choose_formats, is_quantised
from stretto.quantize.imatrix import ImportanceMatrix
from stretto.quantize.mixes import VERSION, Mix, find_format, find_mix
from stretto.quantize.tensors import QuantisedTensor
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.made_tensor import Kept
from stretto.weights.metadata import ValueType
from stretto.weights.split import COUNT, NUMBER, TENSORS
from stretto.weights.tensor import Tensor
from stretto.weights.writer import Writable, write_gguf

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
    with GGUF(source) as file:
        return write_model(
            file,
            target,
            find_mix(mix),
            file.metadata,
            types=file.metadata.types,
            imatrix=read_importance(imatrix),
            overrides=read_overrides(tensor_types),
            pure=pure,
            allow_requantize=allow_requantize,
            replace=replace,
            threads=threads,
            progress=progress,
        )


def read_importance(given: str | os.PathLike[str] | ImportanceMatrix | None) -> ImportanceMatrix | None:
    """An importance matrix that is given as such, or as a file."""
    return given if given is None or isinstance(given, ImportanceMatrix) else ImportanceMatrix.read(given)


def read_overrides(pairs: Sequence[tuple[str, str]]) -> list[tuple[re.Pattern[str], Format]]:
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
    mix: Mix,
    metadata: Mapping[str, Any],
    *,
    types: Mapping[str, ValueType] | None = None,
    plain_as_float32: bool = False,
    imatrix: ImportanceMatrix | None = None,
    overrides: Sequence[tuple[re.Pattern[str], Format]] = (),
    pure: bool = False,
    allow_requantize: bool = False,
    replace: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write an open model with a mix's formats and this metadata. `plain_as_float32` widens what is kept."""
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
    tensors = choose_tensors(
        file,
        mix,
        imatrix=imatrix,
        overrides=overrides,
        pure=pure,
        allow_requantize=allow_requantize,
        threads=threads,
        progress=progress,
        plain_as_float32=plain_as_float32,
    )
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    _check_space(path, nbytes)
    values = described(metadata, mix, imatrix)
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
    file: GGUF,
    mix: Mix,
    *,
    imatrix: ImportanceMatrix | None = None,
    overrides: Sequence[tuple[re.Pattern[str], Format]] = (),
    pure: bool = False,
    allow_requantize: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    plain_as_float32: bool = False,
    kept: Kept | None = None,
    at_load: bool = False,
) -> dict[str, Tensor]:
    """The tensors of a file in the formats of a mix: those that change are made when they are read.

    `at_load` is for errors: the parameter is then `quantize` of `stretto.load`.
    """
    chosen = choose_formats(
        mix, file.metadata, file.tensors, has_imatrix=imatrix is not None, overrides=overrides, pure=pure
    )
    if plain_as_float32:
        chosen |= {
            name: Format.F32
            for name, tensor in file.tensors.items()
            if chosen[name] is tensor.format and tensor.format in PLAIN and not is_quantised(tensor)
        }
    changed = {name: fmt for name, fmt in chosen.items() if fmt is not file.tensors[name].format}
    if not allow_requantize:
        _check_sources(file, changed, at_load)
    _check_importance(file, changed, imatrix)
    quantizer = _native.Quantizer(threads or usable_cores())
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


def described(metadata: Mapping[str, Any], mix: Mix, imatrix: ImportanceMatrix | None) -> dict[str, Any]:
    """The metadata of a model in a mix: as it was, with its formats and without its parts."""
    values = {key: value for key, value in metadata.items() if key not in (NUMBER, COUNT, TENSORS)}
    values |= {"general.quantization_version": VERSION, "general.file_type": mix.file_type}
    if imatrix is not None:
        values |= {
            "quantize.imatrix.file": imatrix.path,
            "quantize.imatrix.dataset": " ".join(imatrix.datasets),
            "quantize.imatrix.entries_count": len(imatrix.inputs),
            "quantize.imatrix.chunks_count": imatrix.chunks,
        }
    return values
