"""From the logits of a set to the next set: combine, temper, and keep what reaches the threshold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.errors import InvalidRequest

Rows = NDArray[np.float32]  # float32[members, n_vocab]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Chosen:
    """The tokens of the next set, the most probable first; `end` is the end token if that was the best."""

    tokens: list[int]
    probabilities: list[float]
    end: int | None = None

    @property
    def weights(self) -> list[float]:
        """The probabilities, renormalised over the set."""
        total = sum(self.probabilities)
        return [probability / total for probability in self.probabilities]


def distributions(rows: Rows) -> Doubles:
    """The next-token distribution of each member: float64[members, n_vocab]."""
    most = rows.max(axis=1, keepdims=True)
    if not np.isfinite(most).all():
        raise InvalidRequest("the model's logits are not finite numbers; the file may be damaged")
    each: Doubles = np.exp(rows.astype(np.float64) - most)
    each /= each.sum(axis=1, keepdims=True)
    return each


def combine(each: Doubles, weights: ArrayLike, how: str) -> Doubles:
    """The next distribution after a set: the mixture of its members', or that of the best member.

    A set of one has the distribution of its member, unchanged.
    """
    if len(each) == 1 or how == "best":
        first: Doubles = each[0]
        return first
    mixed: Doubles = np.asarray(weights, np.float64) @ each
    return mixed


def temper(distribution: Doubles, temperature: float) -> Doubles:
    """The distribution at a temperature: below 1 sharper, above 1 flatter, at 0 the best token alone."""
    if temperature == 1.0:
        return distribution
    if temperature == 0.0:
        only = np.zeros_like(distribution)
        only[int(np.argmax(distribution))] = 1.0
        return only
    with np.errstate(divide="ignore"):
        logs = np.log(distribution) / temperature
    weights = np.exp(logs - logs.max())
    tempered: Doubles = weights / weights.sum()
    return tempered


def select(distribution: Doubles, threshold: float, max_width: int, ends: Collection[int] = ()) -> Chosen:
    """Every token with probability ≥ threshold, at most `max_width`; the best one if there is none.

    Equal probabilities stand in order of id. An end token that is the best ends the run alone; others are
    dropped from the set.
    """
    best = int(np.argmax(distribution))
    if best in ends:
        return Chosen([], [], best)
    passing = np.flatnonzero(distribution >= threshold)
    order = passing[np.lexsort((passing, -distribution[passing]))][:max_width].tolist()
    tokens = [token for token in order if token not in ends] or [best]
    return Chosen(tokens, [float(distribution[token]) for token in tokens])
