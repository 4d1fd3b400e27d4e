"""Weights in FP8 with scales: one scale for each block of 128 × 128 numbers, for each row, or for all.

They become bfloat16, whose rounding is far below that of three or two bits of mantissa.
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
from stretto.weights.safetensors import Stored
from stretto.weights.tensor import Kept, Tensor

# Of a weight `x`: DeepSeek's and Qwen's folders have inverse scales, those of compressed-tensors plain ones;
# the weight is multiplied by either.
FLOAT8_SCALES = ("_scale_inv", "_scale")
_SCALE_FORMATS = {"F32": Format.F32, "F16": Format.F16, "BF16": Format.BF16}


def scale_name(name: str, stored: Container[str]) -> str | None:
    """The name of the scales of a tensor, if there are any."""
    return next((name + end for end in FLOAT8_SCALES if name + end in stored), None)


def _table(kind: str) -> NDArray[np.float32]:
    """The value of each byte: E4M3 has no infinities and one NaN, E5M2 is the upper half of float16."""
    codes = np.arange(256, dtype=np.uint16)
    if kind == "F8_E5M2":
        return (codes << 8).view(np.float16).astype(np.float32)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7) / 8.0
    values = np.where(exponent == 0, np.ldexp(mantissa, -6), np.ldexp(1.0 + mantissa, exponent - 7))
    values[codes & 0x7F == 0x7F] = np.nan
    return np.asarray(sign * values, np.float32)


class Float8Tensor(Tensor):
    """A matrix in FP8 as bfloat16, made when its data is read."""

    _stored: Stored
    _scale: Stored
    _kept: Kept
    _path: Path

    def __init__(self, name: str, stored: Stored, scale: Stored, kept: Kept, path: Path) -> None:
        put = object.__setattr__  # the class is frozen
        put(self, "name", name)
        put(self, "shape", stored.shape)
        put(self, "format", Format.BF16)
        put(self, "offset", 0)
        put(self, "_stored", stored)
        put(self, "_scale", scale)
        put(self, "_kept", kept)
        put(self, "_path", path)
        self._blocks()

    def renamed(self, name: str) -> Float8Tensor:
        """The same tensor under another name."""
        return Float8Tensor(name, self._stored, self._scale, self._kept, self._path)

    @property
    def data(self) -> NDArray[np.uint8]:
        """uint8[..., bytes of a row], made now unless it was the last to be read."""
        return self._kept.get(self.name, self._make)

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return 2 * prod(self.shape)

    def _blocks(self) -> tuple[int, int]:
        """How many rows and columns a scale is for."""
        given = self._scale.shape
        if self._scale.type in _SCALE_FORMATS and len(self.shape) == 2:
            if prod(given) == 1:
                return self.shape
            if given in ((self.shape[0],), (self.shape[0], 1)):
                return 1, self.shape[1]
            if len(given) == 2 and all(given):
                for size in (128, 64, 32):
                    if given == tuple(-(-n // size) for n in self.shape):
                        return size, size
        raise ModelError(
            f"scales of {self._scale.type}{list(given)} do not fit a matrix of {list(self.shape)}",
            path=self._path,
            field=f"tensor {self._scale.name!r}",
        )

    def _make(self) -> NDArray[np.uint8]:
        n_rows, n_columns = self._blocks()
        rows, columns = self.shape
        numbers = _table(self._stored.type)[self._stored.data].reshape(self.shape)
        scales = formats.dequantize(self._scale.data, _SCALE_FORMATS[self._scale.type])
        scales = scales.reshape(-(-rows // n_rows), -(-columns // n_columns))
        spread = scales.repeat(n_rows, axis=0)[:rows].repeat(n_columns, axis=1)[:, :columns]
        return _bfloat16(numbers * spread).view(np.uint8)


def _bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of float32 numbers, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    upper = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    return upper.astype(np.uint16)


# Matrices of AWQ and GPTQ folders: integers of four bits, a scale and a zero point for each group of them.
#
# A weight is scale × (q − zero). GGUF's formats hold it exactly, with the group's scale in each block of
# 32: Q4_0 is scale × (q − 8), where all zero points are 8, and Q5_0 is scale × (q − 16) of five bits, which
# hold q − zero + 16 of any zero point. Q4_1 would round scale × zero to float16.
#
# Both methods store integers eight to a word and matrices with a column for each output:
#
#     GPTQ  qweight int32[n_in / 8, n_out]   a word has eight rows; its first form stores zero points less one
#     AWQ   qweight int32[n_in, n_out / 8]   a word has eight columns, in the order 0 2 4 6 1 3 5 7
#     both  qzeros int32[n_groups, n_out / 8], scales float16[n_groups, n_out]

FIELD = "quantization_config"
WEIGHTS, ZEROS, INT4_SCALES, GROUPS = PARTS = ("qweight", "qzeros", "scales", "g_idx")
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
        if missing := {WEIGHTS, ZEROS, INT4_SCALES} - self._parts.keys():
            raise self._error(WEIGHTS, f"its {sorted(missing)[0]} is missing; is the folder complete?")
        weights, zeros, scales = (self._parts[part] for part in (WEIGHTS, ZEROS, INT4_SCALES))
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
        stored = self._parts[INT4_SCALES]
        given = formats.dequantize(np.copy(stored.data), _SCALES[stored.type]).reshape(stored.shape)
        with np.errstate(over="ignore"):
            scales = given.astype(np.float16)
        if not np.array_equal(scales.astype(np.float32), given):
            raise self._error(INT4_SCALES, f"scales of {stored.type} that float16 cannot hold; {_REMEDY}")
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


# Experts in MXFP4: blocks of 32 numbers of four bits with one exponent, as they are or in llama.cpp's
# order.
#
# A folder has two neighbours in a byte, the first in its lower half; a GGUF file has number i in the lower
# and number i + 16 in the upper half of byte i, behind the exponent.

HALF = 16  # bytes of a block


class MXFP4Tensor(Tensor):
    """Matrices of experts, made when their data is read; `rows` are those that are taken of each."""

    _blocks: Stored
    _scales: Stored
    _rows: slice
    _kept: Kept

    def __init__(
        self, name: str, blocks: Stored, scales: Stored, rows: slice, kept: Kept, path: Path
    ) -> None:
        if (
            blocks.shape != (*scales.shape, HALF)
            or len(blocks.shape) != 4
            or {blocks.type, scales.type} != {"U8"}
        ):
            raise ModelError(
                f"blocks of {blocks.type}{list(blocks.shape)} do not fit scales of {list(scales.shape)}",
                path=path,
                field=f"tensor {blocks.name!r}",
            )
        experts, height, groups = scales.shape
        put = object.__setattr__  # the class is frozen
        put(self, "name", name)
        put(self, "shape", (experts, len(range(height)[rows]), groups * Format.MXFP4.block))
        put(self, "format", Format.MXFP4)
        put(self, "offset", 0)
        put(self, "_blocks", blocks)
        put(self, "_scales", scales)
        put(self, "_rows", rows)
        put(self, "_kept", kept)

    @property
    def data(self) -> NDArray[np.uint8]:
        """uint8[experts, rows, bytes of a row], made now unless it was the last to be read."""
        return self._kept.get(self.name, self._make)

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return prod(self.shape) // Format.MXFP4.block * Format.MXFP4.size

    def _make(self) -> NDArray[np.uint8]:
        blocks = self._blocks.data.reshape(self._blocks.shape)[:, self._rows]
        scales = self._scales.data.reshape(self._scales.shape)[:, self._rows]
        numbers = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 2 * HALF)
        made = np.empty((*scales.shape, Format.MXFP4.size), np.uint8)
        made[..., 0] = scales
        made[..., 1:] = numbers[..., :HALF] | numbers[..., HALF:] << 4
        return made.reshape(*self.shape[:2], -1)
