"""Matrices of AWQ and GPTQ folders: integers of four bits, a scale and a zero point for each group of them.

A weight is scale × (q − zero). GGUF's formats hold it exactly, with the group's scale in each block of 32:
Q4_0 is scale × (q − 8), where all zero points are 8, and Q5_0 is scale × (q − 16) of five bits, which hold
q − zero + 16 of any zero point. Q4_1 would round scale × zero to float16.

Both methods store integers eight to a word and matrices with a column for each output:

    GPTQ  qweight int32[n_in / 8, n_out]   a word has eight rows; its first form stores zero points less one
    AWQ   qweight int32[n_in, n_out / 8]   a word has eight columns, in the order 0 2 4 6 1 3 5 7
    both  qzeros int32[n_groups, n_out / 8], scales float16[n_groups, n_out]
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights import formats
from stretto.weights.formats import Format
from stretto.weights.json_file import Fields
from stretto.weights.made_tensor import Kept
from stretto.weights.safetensors_file import Stored
from stretto.weights.tensor import Tensor

FIELD = "quantization_config"
WEIGHTS, ZEROS, SCALES, GROUPS = PARTS = ("qweight", "qzeros", "scales", "g_idx")
# What other methods call the tensors that hold integers.
OTHERS = (".qweight", ".weight_packed", ".absmax", ".SCB", ".W_q", ".packed_weight", ".quantized_weight")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
PLAIN_ORDER = tuple(range(8))
BLOCK = 32
_SCALES = {"F16": Format.F16, "BF16": Format.BF16, "F32": Format.F32}
_REMEDY = (
    "take the folder that it was made of and load it with quantize='q4_k_m', or a GGUF file of the model"
)


@dataclass(frozen=True)
class Packing:
    """How a folder packs its matrices; `group` is the number of inputs that share a scale, 0: all."""

    method: str
    group: int
    is_symmetric: bool
    less: int = 0  # what is subtracted from zero points before they are stored
    path: Path = Path()


def read_packing(config: Fields) -> Packing | None:
    """The packing that a configuration names; None if it is neither AWQ nor GPTQ."""
    fields = config.object(FIELD, {})
    method = fields.get("quant_method")
    if method not in ("awq", "gptq"):
        return None
    bits = fields.get("bits", fields.get("w_bit"))
    if bits != 4:
        raise _refusal(fields, f"{method} with {bits!r} bits is not read, only 4")
    group = fields.get("group_size", fields.get("q_group_size", -1))
    if type(group) is not int or (group != -1 and (group < BLOCK or group % BLOCK)):
        raise _refusal(fields, f"groups of {group!r} are no multiple of {BLOCK}")
    if method == "awq":
        if str(fields.get("version", "gemm")).lower() != "gemm" or fields.get("zero_point") is False:
            raise _refusal(fields, "only AWQ's gemm version with zero points is read")
        return Packing("awq", max(group, 0), False, path=config.path)
    if fields.get("desc_act") is True:
        raise _refusal(fields, "inputs in an order of their own (desc_act) have no layout here")
    form = fields.get("checkpoint_format", "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise _refusal(fields, f"the checkpoint_format {form!r} is not read")
    return Packing("gptq", max(group, 0), fields.get("sym", True) is True, int(form == "gptq"), config.path)


def check_packed(config: Fields, names: Iterable[str]) -> None:
    """Raise for integers that are packed by a method that is not read."""
    for name in names:
        if name.endswith(OTHERS):
            method = config.object(FIELD, {}).get("quant_method", "of an unknown method")
            raise _refusal(config.object(FIELD, {}), f"weights by {method!r} (tensor {name!r}) are not read")


def packed_names(stored: Container[str], name: str) -> dict[str, str] | None:
    """The names of the tensors that a packed matrix is stored as, by part; None if it is not packed."""
    stem, _, kind = name.rpartition(".")
    if kind != "weight" or f"{stem}.{WEIGHTS}" not in stored or name in stored:
        return None
    return {part: f"{stem}.{part}" for part in PARTS if f"{stem}.{part}" in stored}


class Int4Tensor(Tensor):
    """A matrix of four-bit integers as Q4_0 or Q5_0, made when its data is read."""

    _parts: Mapping[str, Stored]
    _packing: Packing
    _kept: Kept
    _path: Path

    def __init__(
        self, name: str, parts: Mapping[str, Stored], packing: Packing, kept: Kept, path: Path
    ) -> None:
        put = object.__setattr__  # the class is frozen
        put(self, "name", name)
        put(self, "offset", 0)
        put(self, "format", Format.Q4_0 if packing.is_symmetric else Format.Q5_0)
        put(self, "_parts", parts)
        put(self, "_packing", packing)
        put(self, "_kept", kept)
        put(self, "_path", path)
        put(self, "shape", self._check())

    def renamed(self, name: str) -> Int4Tensor:
        """The same tensor under another name."""
        return Int4Tensor(name, self._parts, self._packing, self._kept, self._path)

    @property
    def data(self) -> NDArray[np.uint8]:
        """uint8[n_out, bytes of a row], made now unless it was the last to be read."""
        return self._kept.get(self.name, self._make)

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return prod(self.shape) // BLOCK * self.format.size

    def _check(self) -> tuple[int, int]:
        """The matrix's shape, (n_out, n_in), once all parts are there and fit."""
        if missing := {WEIGHTS, ZEROS, SCALES} - self._parts.keys():
            raise self._error(WEIGHTS, f"its {sorted(missing)[0]} is missing; is the folder complete?")
        weights, zeros, scales = (self._parts[part] for part in (WEIGHTS, ZEROS, SCALES))
        if {len(one.shape) for one in (weights, zeros, scales)} != {2}:
            raise self._error(WEIGHTS, "it is no matrix")
        wide = self._packing.method == "awq"
        n_in = weights.shape[0] * (1 if wide else 8)
        n_out = weights.shape[1] * (8 if wide else 1)
        groups = n_in // (self._packing.group or max(n_in, 1))
        fitting = (
            0 < n_in == groups * (self._packing.group or n_in)
            and n_in % BLOCK == 0
            and n_out % 8 == 0
            and zeros.shape == (groups, n_out // 8)
            and scales.shape == (groups, n_out)
            and (weights.type, zeros.type) == ("I32", "I32")
            and scales.type in _SCALES
        )
        if not fitting:
            raise self._error(
                WEIGHTS,
                f"{weights.type}{list(weights.shape)} does not fit qzeros of {zeros.type}{list(zeros.shape)} "
                f"and scales of {scales.type}{list(scales.shape)} in groups of {self._packing.group or n_in}",
            )
        return n_out, n_in

    def _make(self) -> NDArray[np.uint8]:
        n_out, n_in = self.shape
        group = self._packing.group or n_in
        self._check_order(n_in, group)
        numbers = self._numbers().reshape(n_in // group, group, n_out)
        zeros = self._zeros()[:, None, :]
        if self._packing.is_symmetric:
            if (zeros != 8).any():
                raise self._error(ZEROS, "zero points differ from 8, but the configuration says sym")
        else:
            numbers = numbers + 16 - zeros  # uint8: 0 to 31
        blocks = np.ascontiguousarray(numbers.reshape(n_in, n_out).T).reshape(n_out, n_in // BLOCK, BLOCK)
        scales = self._scales_f16().repeat(group // BLOCK, axis=0).T  # float16[n_out, n_in / 32]
        made = np.empty((n_out, n_in // BLOCK, self.format.size), np.uint8)
        made[..., :2] = np.ascontiguousarray(scales)[..., None].view(np.uint8)
        low, half = blocks & 15, BLOCK // 2
        made[..., -half:] = low[..., :half] | low[..., half:] << 4
        if self.format is Format.Q5_0:  # the fifth bits, one word a block
            made[..., 2:6] = np.packbits(blocks >> 4, axis=-1, bitorder="little")
        return made.reshape(n_out, -1)

    def _numbers(self) -> NDArray[np.uint8]:
        """uint8[n_in, n_out]."""
        words = self._words(WEIGHTS)
        if self._packing.method == "awq":
            return _columns(words, AWQ_ORDER)
        nibbles = np.stack([(words >> np.uint32(4 * i)) & np.uint32(15) for i in range(8)], axis=1)
        return nibbles.astype(np.uint8).reshape(-1, words.shape[1])

    def _zeros(self) -> NDArray[np.uint8]:
        """uint8[n_groups, n_out]."""
        found = _columns(self._words(ZEROS), AWQ_ORDER if self._packing.method == "awq" else PLAIN_ORDER)
        if self._packing.less and not self._packing.is_symmetric and (found == 15).any():
            raise self._error(ZEROS, "a zero point of 16, which readers of this form disagree about")
        return found + np.uint8(self._packing.less)

    def _words(self, part: str) -> NDArray[np.uint32]:
        stored = self._parts[part]
        return np.frombuffer(stored.data.tobytes(), "<u4").reshape(stored.shape)

    def _scales_f16(self) -> NDArray[np.float16]:
        """float16[n_groups, n_out], of which none was rounded."""
        stored = self._parts[SCALES]
        given = formats.dequantize(np.copy(stored.data), _SCALES[stored.type]).reshape(stored.shape)
        with np.errstate(over="ignore"):
            scales = given.astype(np.float16)
        if not np.array_equal(scales.astype(np.float32), given):
            raise self._error(SCALES, f"scales of {stored.type} that float16 cannot hold; {_REMEDY}")
        return scales

    def _check_order(self, n_in: int, group: int) -> None:
        if GROUPS not in self._parts:
            return
        stored = self._parts[GROUPS]
        order = np.frombuffer(stored.data.tobytes(), "<i4") if stored.type == "I32" else np.zeros(0)
        if not np.array_equal(order, np.arange(n_in) // group):
            raise self._error(
                GROUPS, f"inputs in an order of their own (desc_act) have no layout here; {_REMEDY}"
            )

    def _error(self, part: str, message: str) -> ModelError:
        name = self._parts[part].name if part in self._parts else part
        return ModelError(message, path=self._path, field=f"tensor {name!r}")


def _columns(words: NDArray[np.uint32], order: tuple[int, ...]) -> NDArray[np.uint8]:
    """The eight numbers of each word, beside each other: number i of a word is column order[i]."""
    made = np.empty((*words.shape, 8), np.uint8)
    for i, column in enumerate(order):
        made[..., column] = (words >> np.uint32(4 * i)) & np.uint32(15)
    return made.reshape(words.shape[0], -1)


def _refusal(fields: Fields, message: str) -> ModelError:
    return ModelError(f"{message}; {_REMEDY}", path=fields.path, field=f"config.json {FIELD}")
