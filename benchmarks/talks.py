"""Conversations for benchmarks of routing: how long they are, and in which order their turns come.

`PUBLISHED` are means from papers; their spread is not published, so lengths are log-normal with sigma 1 and
numbers of turns geometric, with those means. `LIVE` is what `benchmarks/affinity.py` sends to real replicas.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """Means of a kind of conversation, in tokens; `exact` ones are the same for all."""

    source: str
    turns: float
    prompt: float
    answer: float
    system: int = 200  # tokens that all conversations begin with
    exact: bool = False


PUBLISHED = {
    "lmsys": Kind("LMSYS-Chat-1M (arXiv:2309.11998)", 2.0, 69.5, 214.5),
    "wildchat": Kind("WildChat (arXiv:2405.01470)", 2.54, 295.58, 441.34),
    "assistant": Kind(
        "WildChat's lengths in conversations of 10 turns (our assumption)", 10.0, 295.58, 441.34
    ),
}
LIVE = Kind("benchmarks/affinity.py", 4, 48, 8, system=48, exact=True)


@dataclass(frozen=True)
class Turn:
    """One request: its conversation, and how many tokens are new in its prompt and its answer."""

    talk: int
    number: int
    prompt: int
    answer: int


def talk_turns(kind: Kind, talk: int, rng: random.Random) -> list[Turn]:
    """The turns of one conversation."""
    if kind.exact:
        n = int(kind.turns)
        return [Turn(talk, i, int(kind.prompt), int(kind.answer)) for i in range(n)]
    n = 1
    while n < 64 and rng.random() > 1 / kind.turns:
        n += 1
    return [Turn(talk, i, _length(kind.prompt, rng), _length(kind.answer, rng)) for i in range(n)]


def shuffled(kind: Kind, n_talks: int, seed: int = 5) -> list[Turn]:
    """All turns of some conversations in a random order, in which each conversation keeps its own."""
    rng = random.Random(seed)
    talks = [talk_turns(kind, talk, rng) for talk in range(n_talks)]
    order = [talk for talk, turns in enumerate(talks) for _ in turns]
    rng.shuffle(order)
    left = [iter(turns) for turns in talks]
    return [next(left[talk]) for talk in order]


def _length(mean: float, rng: random.Random) -> int:
    return max(1, min(16_384, round(rng.lognormvariate(math.log(mean) - 0.5, 1.0))))
