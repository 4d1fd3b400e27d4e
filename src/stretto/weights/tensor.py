"""One tensor of a model file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.weights import formats
from stretto.weights.formats import Format, widen


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


# Tensors that no file has as they are wanted: made of others when they are read.
#
# A tensor of a GGUF file may be the rows of one in another order, several in one, or one with a number
# added. `Op` says how; moving numbers keeps their format, computing makes float32 of them.

Array = NDArray[Any]
Shape = tuple[int, ...]
_WORDS: dict[Format, np.dtype[Any]] = {
    Format.F32: np.dtype("<u4"),
    Format.F16: np.dtype("<u2"),
    Format.BF16: np.dtype("<u2"),
}


@dataclass(frozen=True)
class Op:
    """A function of arrays, the shape of its result, and whether it computes or only moves numbers.

    One that moves rows as a whole (`whole_rows`) moves those of packed formats too.
    """

    apply: Callable[..., Array]
    shape: Callable[..., Shape]
    computes: bool = False
    whole_rows: bool = False

    def then(self, other: Op) -> Op:
        """The other after this one, which gives one array."""
        return Op(
            lambda *arrays: other.apply(self.apply(*arrays)),
            lambda *shapes: other.shape(self.shape(*shapes)),
            self.computes or other.computes,
            self.whole_rows and other.whole_rows,
        )


class MadeTensor(Tensor):
    """A tensor made of others when its data is read; `kept` holds the data that was read last."""

    def __init__(self, name: str, op: Op, sources: list[Tensor], kept: Kept) -> None:
        shapes = [source.shape for source in sources]
        fmt = sources[0].format
        same = len({source.format for source in sources}) == 1 and (fmt in _WORDS or op.whole_rows)
        put = object.__setattr__  # the class is frozen
        put(self, "name", name)
        put(self, "shape", op.shape(*shapes))
        put(self, "format", fmt if same and not op.computes else Format.F32)
        put(self, "offset", 0)
        put(self, "sources", sources)
        put(self, "_op", op)
        put(self, "_kept", kept)

    sources: list[Tensor]
    _op: Op
    _kept: Kept

    @property
    def data(self) -> NDArray[np.uint8]:
        """uint8[..., bytes of a row], made now unless it was the last to be read."""
        return self._kept.get(self.name, self._make)

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return prod(self.shape) // self.format.block * self.format.size

    def _make(self) -> NDArray[np.uint8]:
        if not self._op.computes and self.format not in _WORDS:
            rows = [source.data.reshape(*source.shape[:-1], -1) for source in self.sources]
            return np.ascontiguousarray(self._op.apply(*rows)).reshape(*self.shape[:-1], -1)
        word: np.dtype[Any] = np.dtype("<f4") if self._op.computes else _WORDS[self.format]
        moved = self._op.apply(*(self._read(source, word) for source in self.sources))
        made = np.ascontiguousarray(moved, dtype=word).reshape(self.shape)
        data: NDArray[np.uint8] = made.view(np.uint8)
        return data

    def _read(self, source: Tensor, word: np.dtype[Any]) -> Array:
        """A source's numbers, as they are or as float32."""
        if self._op.computes or source.format is not self.format:
            return source.dequantize().reshape(source.shape).view(word)
        return source.data.reshape(-1).view(word).reshape(source.shape)


class WidenedTensor(Tensor):
    """A tensor of a file in Q2_0 as Q4_0, which has the same numbers (`formats.widen`)."""

    _source: Tensor
    _kept: Kept

    def __init__(self, source: Tensor, kept: Kept) -> None:
        put = object.__setattr__  # the class is frozen
        put(self, "name", source.name)
        put(self, "shape", source.shape)
        put(self, "format", Format.Q4_0)
        put(self, "offset", source.offset)
        put(self, "_source", source)
        put(self, "_kept", kept)

    @property
    def data(self) -> NDArray[np.uint8]:
        """uint8[..., bytes of a row], made now unless it was the last to be read."""
        return self._kept.get(self.name, lambda: widen(self._source.data))

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return prod(self.shape) // self.format.block * self.format.size


class Kept:
    """The data of the made tensor that was read last: experts are read one by one from the same tensor."""

    def __init__(self) -> None:
        self._last: tuple[str, NDArray[np.uint8]] = "", np.zeros(0, np.uint8)

    def get(self, name: str, make: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """The data of a tensor, made unless it is kept. Threads may ask for different ones."""
        last = self._last
        if last[0] != name:
            last = self._last = name, make()
        return last[1]

    def clear(self) -> None:
        """Let go of the data."""
        self._last = "", np.zeros(0, np.uint8)


class ConstantTensor(Tensor):
    """A tensor of numbers that a configuration gives, such as the divisors of a rope's frequencies."""

    def __init__(self, name: str, numbers: Array) -> None:
        floats = np.ascontiguousarray(numbers, np.float32)
        super().__init__(name, floats.shape, Format.F32, 0, floats.view(np.uint8))
