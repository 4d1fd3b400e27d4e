"""What a parallel run is made of: members, and steps that hold a set of them at one position."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Place = tuple[int, int]  # a member of a run: its position and its token


@dataclass
class Member:
    """A token of a set.

    - `probability`: in the distribution that the set was taken from, after the temperature
    - `weight`: its share of the set, which is what it counts for in the next distribution
    - `kept`: whether it is still in the cache; False once it has been pruned
    - `cell`: the cell that it took; None as long as the set has not been computed, as the last one never is
    - `attention`: what later tokens gave to it on average, where pruning has measured that
    """

    id: int
    text: str
    probability: float
    weight: float = 1.0
    kept: bool = True
    cell: int | None = None
    attention: float | None = None

    @property
    def brackets(self) -> str:
        """Its text as it stands in brackets."""
        return _escaped(self.text, "\\[/]")


@dataclass(frozen=True)
class Attention:
    """The attention of a set's members, most probable member first.

    Columns are the cells of the run when the set was computed, in order of position, the set's own last.
    """

    weights: Floats  # float32[n_layer, n_head, members, cells]; float32[1, 1, members, cells] of a mean
    cells: Ints  # int32[cells]
    positions: Ints  # int32[cells]
    tokens: Ints  # int32[cells]


@dataclass
class ParallelStep:
    """One set of tokens at one position, the most probable first.

    - `chosen`: the member that the run's path goes through, which need not be the first; None until it is
      decided, which is before the step is given out
    - `text`: what the path gained here; half a character waits for the next step
    - `cut`: whether a stop string begins here or goes on; then `text` has only what stands before it
    - `edges[i][j]`: the probability of member j after member i of the step before, in the model's own
      distribution there; one row where the step before had one member, or was the prompt
    - `logprobs`: the same as log-probabilities, which do not become 0
    - `allowed`: with a grammar, which of these edges it allows on the best path to member i
    - `attention`: with `attention=True`, once the set has been computed
    """

    index: int
    position: int
    members: list[Member]
    text: str = ""
    threshold: float = 1.0
    edges: list[list[float]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list, repr=False)
    allowed: list[list[bool]] | None = field(default=None, repr=False)
    chosen: int | None = None
    cut: bool = False
    attention: Attention | None = field(default=None, repr=False)

    @property
    def best(self) -> Member:
        """The most probable member."""
        return self.members[0]

    @property
    def token(self) -> int | None:
        """The token of the run's path; None until it is decided."""
        return None if self.chosen is None else self.members[self.chosen].id

    @property
    def width(self) -> int:
        """How many members the set had when it was made."""
        return len(self.members)

    def path_logs(self) -> list[list[float]]:
        """What each edge adds to a path, by member before and member; −inf where it is forbidden."""
        if self.allowed is None:
            return self.logprobs
        pairs = zip(self.logprobs, self.allowed, strict=True)
        return [[log if may else -inf for log, may in zip(*each, strict=True)] for each in pairs]

    @property
    def brackets(self) -> str:
        r"""Its text, or `[a/b/c]`; what would be taken for a bracket or a stroke has a `\` before it."""
        if self.width == 1 or self.cut:
            return _escaped(self.text, "\\[")
        return "[" + "/".join(member.brackets for member in self.members) + "]"


def _escaped(text: str, special: str) -> str:
    return "".join(f"\\{char}" if char in special else char for char in text)
