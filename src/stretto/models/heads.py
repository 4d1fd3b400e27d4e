"""What an encoder makes of the hidden states of a text, as plain data: pooling, and matrices behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stretto.models.parts import Norm, Shapes

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
