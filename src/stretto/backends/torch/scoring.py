"""How products of queries and keys become scores."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.backends.torch.device import Tensor


@dataclass(frozen=True)
class Scoring:
    """The arguments of attention beside queries, cells and work."""

    scale: float
    cap: float = 0.0  # scores become cap × tanh(score / cap); 0: as they are
    sinks: Tensor | None = None  # float32[heads]: scores that belong to no cell
    alibi: Tensor | None = None  # float32[heads]: what scores fall by with each position of distance
