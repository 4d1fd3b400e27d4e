"""Tensors that a caller gives in place of those of a file, in the file's own formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest
from stretto.weights.formats import WRITABLE, Format, quantize
from stretto.weights.safetensors import Shard, Stored
from stretto.weights.tensor import MadeTensor, Tensor

Bytes = NDArray[np.uint8]
Given = Mapping[str, Any]  # arrays, or tensors of torch
FORMATS = {"F32": Format.F32, "F16": Format.F16, "BF16": Format.BF16}
OUTPUT, EMBEDDINGS = "lm_head.weight", "embed_tokens.weight"


def _as_bytes(name: str, array: Any, shape: tuple[int, ...], fmt: Format) -> Bytes:
    """The numbers of an array in a format, row by row; raises where they do not fit."""
    if hasattr(array, "detach"):  # of torch, also in formats that NumPy lacks
        array = array.detach().float().cpu().numpy()
    try:
        with np.errstate(over="ignore"):
            numbers = np.asarray(array, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name!r} holds no numbers: {error}", param="weights") from None
    if numbers.shape != shape:
        raise InvalidRequest(
            f"{name!r} has the shape {list(numbers.shape)}, and the model {list(shape)}", param="weights"
        )
    if not np.isfinite(numbers).all():
        raise InvalidRequest(f"{name!r} holds NaN or infinity", param="weights")
    if fmt not in WRITABLE:
        raise InvalidRequest(
            f"{name!r} is in {fmt.name} in the model's file, which cannot be written; load another file",
            param="weights",
        )
    return quantize(numbers, fmt)


def _refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted(set(names) - set(known)):
        raise InvalidRequest(
            f"the model's file has no tensor {unknown[0]!r} ({len(unknown)} such names), only such as "
            f"{', '.join(sorted(known)[:3])}",
            param="weights",
        )


def put_in_shards(shards: list[Shard], given: Given) -> list[Bytes]:
    """Put tensors into opened safetensors files, by the names that these have; return their bytes."""
    found: list[Bytes] = []
    known = {name for shard in shards for name in shard.stored}
    names = set(given)
    if OUTPUT in names - known:  # a module's state has it too where it is tied to the embeddings
        tied = next((name for name in given if name.endswith(EMBEDDINGS)), None)
        if tied is not None and _is_same(given[OUTPUT], given[tied]):
            names.remove(OUTPUT)
    _refuse_unknown(names, known)
    for shard in shards:
        for name in sorted(names & shard.stored.keys()):
            old = shard.stored[name]
            if old.type not in FORMATS:
                raise InvalidRequest(
                    f"{name!r} is in {old.type} in the model's files, which is not written",
                    param="weights",
                )
            found.append(_as_bytes(name, given[name], old.shape, FORMATS[old.type]).reshape(-1))
            shard.stored[name] = Stored(name, old.type, old.shape, 0, found[-1])
    return found


def put_in_tensors(tensors: dict[str, Tensor], given: Given) -> list[Bytes]:
    """Put tensors in place of those of a GGUF file, by its names; return their bytes."""
    _refuse_unknown(given, tensors)
    found: list[Bytes] = []
    for name, array in given.items():
        old = tensors[name]
        found.append(_as_bytes(name, array, old.shape, old.format))
        tensors[name] = Tensor(name, old.shape, old.format, 0, found[-1])
    return found


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    first, second = (
        each.detach().float().cpu() if hasattr(each, "detach") else each for each in (one, other)
    )
    return np.array_equal(np.asarray(first), np.asarray(second))


def find_given(arrays: Iterable[Bytes]) -> Callable[[Tensor], bool]:
    """Whether a tensor is one of those that were put in, or is made of one."""
    ranges = [_range_of(one) for one in arrays]

    def is_given(tensor: Tensor) -> bool:
        if isinstance(tensor, MadeTensor):
            return any(map(is_given, tensor.sources))
        first, last = _range_of(tensor.data)
        return any(begin <= first and last <= end for begin, end in ranges)

    return is_given


def _range_of(array: Bytes) -> tuple[int, int]:
    first = array.__array_interface__["data"][0]
    return first, first + array.nbytes
