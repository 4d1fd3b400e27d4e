"""What mixers and feed-forwards are made of, as plain data: ropes, norms, and parts of the file's tensors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stretto.models.showing import short_repr

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Slice:
    """Rows [first, first + rows) of a tensor, or of each expert's matrix in it."""

    tensor: str
    first: int
    rows: int
    experts: bool = False


@dataclass(frozen=True)
class ByLength:
    """Two sets of frequencies: for contexts of up to `length` tokens, and for longer ones (LongRoPE)."""

    length: int
    short: tuple[float, ...]
    long: tuple[float, ...]


@dataclass(frozen=True)
class Rope:
    """Rotary positions. Pair i is rotated by position × frequencies[i], both parts × magnitude.

    `pairs` says which numbers of a head form pair i: "adjacent" (2i, 2i+1) or "halves" (i, i + d/2),
    where d = 2 × len(frequencies); numbers of the head from d on are not rotated. `axes` says which of
    the three positions of an image's token (time, row, column) pair i takes; in text all three are the same.
    """

    frequencies: tuple[float, ...]
    pairs: Literal["adjacent", "halves"]
    magnitude: float = 1.0
    axes: tuple[int, ...] | None = None
    by_length: ByLength | None = None

    __repr__ = short_repr

    @property
    def chosen(self) -> str:
        """Which of two sets of frequencies this is, in words; "" if there is one only."""
        if self.by_length is None:
            return ""
        is_long = self.frequencies == self.by_length.long
        return f"rope {'beyond' if is_long else 'up to'} {self.by_length.length} tokens"

    @property
    def sides(self) -> tuple[slice, slice]:
        """The first number of each pair in a head, and the second."""
        pairs = len(self.frequencies)
        if self.pairs == "adjacent":
            return slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        return slice(0, pairs), slice(pairs, 2 * pairs)

    def within(self, context: int) -> Rope:
        """The rope of a context of so many tokens. All cells have one rope, so it is not a text's length."""
        if self.by_length is None:
            return self
        is_long = context > self.by_length.length
        return replace(self, frequencies=self.by_length.long if is_long else self.by_length.short)

    def angles(self, positions: NDArray[np.integer]) -> NDArray[np.float64]:
        """float64[n, d/2]: the angle of each pair at each position, given as [n] or by axes as [n, 3]."""
        if positions.ndim == 2:
            positions = positions[:, [0] if self.axes is None else list(self.axes)]
        else:
            positions = positions[:, None]
        angles: NDArray[np.float64] = positions * np.asarray(self.frequencies)
        return angles


@dataclass(frozen=True)
class Norm:
    """A norm with the name of its tensors: "rms", or "layer", which subtracts the mean first.

    `over` says what is normalised together where heads are: "head" (each head, with weights that all share),
    "heads" (each head, with weights of its own), "all" (the whole row). Without `weight` nothing is
    multiplied. `bare`: the tensor's name is `name` alone, without ".weight".
    """

    name: str
    eps: float = field(repr=False)  # the same for all norms of a model
    kind: Literal["rms", "layer"] = "rms"
    weight: bool = True
    bias: bool = False
    over: Literal["head", "heads", "all"] = "head"
    bare: bool = False

    @property
    def weight_name(self) -> str:
        """The name of the tensor of weights."""
        return self.name if self.bare else f"{self.name}.weight"

    def shape(self, n_head: int, head_size: int) -> tuple[int, ...]:
        """The shape of its weights where heads are."""
        by_extent = {"head": (head_size,), "heads": (n_head, head_size), "all": (n_head * head_size,)}
        return by_extent[self.over]

    def tensors(self, *shape: int) -> Shapes:
        """The norm's tensors, each of that shape."""
        names = [(self.weight_name, self.weight), (f"{self.name}.bias", self.bias)]
        return {name: shape for name, there in names if there}


@dataclass(frozen=True)
class Temperature:
    """Queries grow with the position: × (1 + slope × log(1 + floor((position + offset) / length)))."""

    slope: float
    length: int
    offset: float = 0.0
