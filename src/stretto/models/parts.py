"""What mixers and feed-forwards are made of, as plain data: ropes, norms, and parts of the file's tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# Specs as text that fits a screen: without fields that have their defaults, and equal layers once.

MAX_KINDS = 2  # of parts that are written out
MAX_NUMBERS = 4  # of a tuple of numbers


def short_repr(part: Any) -> str:
    """A dataclass with the fields that differ from their defaults; for `__repr__` of specs.

    >>> short_repr(Norm("attn_norm", 1e-5))
    "Norm(name='attn_norm')"
    """
    shown = [f"{one.name}={_shown(getattr(part, one.name))}" for one in fields(part) if _differs(part, one)]
    return f"{type(part).__name__}({', '.join(shown)})"


def _differs(part: Any, one: Field[Any]) -> bool:
    return one.repr and (one.default is MISSING or getattr(part, one.name) != one.default)


def _shown(value: Any) -> str:
    if is_dataclass(value):
        return short_repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, tuple) or not value:
        return repr(value)
    return _shown_parts(value) if is_dataclass(value[0]) else _shown_values(value)


def _shown_values(values: tuple[Any, ...]) -> str:
    """The first of some values, and how many there are."""
    first = ", ".join(map(_shown, values[:MAX_NUMBERS]))
    return f"({first})" if len(values) <= MAX_NUMBERS else f"({first}, … {len(values)} in all)"


def _shown_parts(parts: tuple[Any, ...]) -> str:
    """Parts of the same kind once, each with its number."""
    kinds = Counter(map(short_repr, parts))
    several = [f"{count} × {text}" for text, count in kinds.most_common(MAX_KINDS)]
    rest = len(parts) - sum(count for _, count in kinds.most_common(MAX_KINDS))
    return f"[{', '.join(several)}{f', {rest} of {len(kinds) - MAX_KINDS} other kinds' if rest else ''}]"


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
class Stretch:
    """Frequencies that fall with the length of a text of more than `length` tokens (dynamic NTK).

    In a text of n tokens they are those of a base that is × r^(d / (d − 2)), with d rotated numbers and
    r = factor × n / length − (factor − 1). For models that attend in both directions: they see all n at once.
    """

    length: int
    factor: float

    def shares(self, lengths: NDArray[np.integer], pairs: int) -> NDArray[np.float64]:
        """float64[n, pairs]: what is left of each frequency in texts of these lengths; needs two pairs."""
        ratios = self.factor * np.maximum(lengths, self.length) / self.length - (self.factor - 1)
        shares: NDArray[np.float64] = ratios[:, None] ** (-np.arange(pairs, dtype=np.float64) / (pairs - 1))
        return shares


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
    stretch: Stretch | None = None

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

    def angles(
        self, positions: NDArray[np.integer], lengths: NDArray[np.integer] | None = None
    ) -> NDArray[np.float64]:
        """float64[n, d/2]: the angle of each pair at each position, given as [n] or by axes as [n, 3].

        `lengths` int[n] are those of the texts, for a rope that stretches.
        """
        if positions.ndim == 2:
            positions = positions[:, [0] if self.axes is None else list(self.axes)]
        else:
            positions = positions[:, None]
        angles: NDArray[np.float64] = positions * np.asarray(self.frequencies)
        if self.stretch is not None and lengths is not None:
            angles = angles * self.stretch.shares(lengths, len(self.frequencies))
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


# What stands beside mixer and feed-forward in a layer, as plain data.
#
# `LayerInput`: embeddings of each token for each layer. `Streams`: a residual of several streams (AltUp).
# `LowRank`: a residual through a narrow pair of matrices (Laurel). Each names the tensors it needs; those
# of a layer without its prefix.


@dataclass(frozen=True)
class PerLayer:
    """Embeddings of each token for each layer, `size` numbers each, and a projection of the common one.

    The input of layer i is (e_i × √size + norm(P_i x / √n_embd)) / √2, where x is the token's common
    embedding and e_i its own one for this layer.
    """

    size: int
    norm: Norm

    def tensors(self, n_vocab: int, n_embd: int, n_layer: int) -> Shapes:
        """The tensors of the file."""
        return {
            "per_layer_token_embd.weight": (n_vocab, n_layer * self.size),
            "per_layer_model_proj.weight": (n_layer * self.size, n_embd),
        } | self.norm.tensors(self.size)


@dataclass(frozen=True)
class LayerInput:
    """The end of a layer: norm(proj(gelu(gate x) × the layer's input)) is added to x."""

    size: int
    norm: Norm

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        shapes: Shapes = {"inp_gate.weight": (self.size, n_embd), "proj.weight": (n_embd, self.size)}
        return shapes | self.norm.tensors(n_embd)


@dataclass(frozen=True)
class LowRank:
    """What a layer adds beside its mixer: with y = norm x, x becomes (x + mixer y + y + norm(R L y)) / √2."""

    rank: int
    norm: Norm

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        shapes: Shapes = {"laurel_l.weight": (self.rank, n_embd), "laurel_r.weight": (n_embd, self.rank)}
        return shapes | self.norm.tensors(n_embd)


@dataclass(frozen=True)
class Streams:
    """A residual of `n` streams (AltUp), of which a layer computes the first one only.

    Before the layer all streams are predicted as a mixture of all, after it corrected by what the layer
    changed in the first one. The weights of both come from a router that looks at the first stream.
    A layer's input is added to the others.
    """

    n: int
    norm: Norm  # of the router

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of each layer."""
        return {
            "altup_router.weight": (self.n, n_embd),
            "altup_predict_coef.weight": (self.n * self.n, self.n),
            "altup_correct_coef.weight": (self.n, self.n),
            "altup_correct_scale.weight": (n_embd,),
        } | self.norm.tensors(n_embd)

    def whole(self, n_embd: int) -> Shapes:
        """The tensors that make streams of embeddings, and one of them at the end."""
        shape = (self.n - 1, n_embd, n_embd)
        return {"altup_proj.weight": shape, "altup_unembd_proj.weight": shape}


# What an encoder makes of the hidden states of a text, as plain data: pooling, and matrices behind it.

Pooling = Literal["mean", "cls", "last"]  # of a text's hidden states: their mean, the first, the last
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last")


@dataclass(frozen=True)
class Projection:
    """A matrix with the name of its tensors: [norm] activation(matrix × vector [+ bias])."""

    name: str
    rows: int
    columns: int
    bias: bool = False
    activation: Literal["none", "tanh", "gelu", "gelu_erf"] = "none"
    norm: Norm | None = None

    def tensors(self) -> Shapes:
        """The tensors of the file."""
        shapes: Shapes = {f"{self.name}.weight": (self.rows, self.columns)}
        if self.bias:
            shapes[f"{self.name}.bias"] = (self.rows,)
        return shapes | (self.norm.tensors(self.rows) if self.norm is not None else {})


@dataclass(frozen=True)
class Head:
    """From a text's hidden states to its vector, or to a score for each label.

    `labels`: their names, empty if the file has none. `softmax`: scores are meant as probabilities that
    exclude each other; the file's model was trained to give them so.
    """

    pooling: Pooling
    projections: tuple[Projection, ...] = ()
    labels: tuple[str, ...] = ()
    softmax: bool = False

    def n_out(self, n_embd: int) -> int:
        """Numbers that come out of it."""
        return self.projections[-1].rows if self.projections else n_embd
