"""From the logits of a set to the next set: combine, temper, and keep what reaches the threshold.

`pick` and `pick_from` do that in native code, which looks at few of the tokens. `select`, of what `combine`
and `temper` make of `distributions`, is the definition.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto._native import Mixture
from stretto.errors import InvalidRequest
from stretto.sampling.sampler import WRONG

Rows = NDArray[np.float32]  # float32[members, n_vocab]
Row = NDArray[np.float32]  # float32[n_vocab]

NOT_FINITE = "the model's logits are not finite numbers; the file may be damaged"


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


def pick(
    mixture: Mixture, weights: list[float], threshold: float, max_width: int, ends: Collection[int] = ()
) -> Chosen:
    """`select` of a mixture of distributions, which needs no row of all tokens."""
    best, tokens, probabilities = mixture.pick(weights, threshold, max_width)
    if best in ends:
        return Chosen([], [], best)
    kept = [at for at, token in enumerate(tokens) if token not in ends]
    return Chosen([tokens[at] for at in kept], [probabilities[at] for at in kept])


def pick_from(
    row: Row, temperature: float, threshold: float, max_width: int, ends: Collection[int] = ()
) -> Chosen:
    """`select` of a row of logits that hooks may have changed: −inf excludes a token."""
    mixture = Mixture(row[np.newaxis], [0], temperature or 1.0)
    if mixture.error:
        raise InvalidRequest(WRONG[mixture.error])
    chosen = pick(mixture, [1.0], threshold, max_width if temperature else 1, ends)
    return chosen if temperature else Chosen(chosen.tokens, [1.0] * len(chosen.tokens), chosen.end)


def shares(rows: Rows) -> Rows:
    """The next-token distribution of each member: float32[members, n_vocab]. NaN where there is none."""
    with np.errstate(invalid="ignore"):
        each: Rows = np.exp(rows - rows.max(axis=1, keepdims=True))
        each /= each.sum(axis=1, keepdims=True)
    return each


def distributions(rows: Rows) -> Rows:
    """`shares`, of logits that are numbers."""
    each = shares(rows)
    if not np.isfinite(each[:, 0]).all():  # one that is no number spoils its whole row
        raise InvalidRequest(NOT_FINITE)
    return each


def combine(each: Rows, weights: ArrayLike, how: str) -> Row:
    """The next distribution after a set: the mixture of its members', or that of the best member.

    A set of one has the distribution of its member, unchanged.
    """
    if len(each) == 1 or how == "best":
        first: Row = each[0]
        return first
    mixed: Row = np.asarray(weights, np.float32) @ each
    return mixed


def mixed_row(rows: Rows, weights: ArrayLike) -> Row:
    """Logits of the mixture of some distributions: what hooks see after a set."""
    with np.errstate(divide="ignore", invalid="ignore"):
        row: Row = np.log(combine(shares(rows), weights, "mixture"))
    return row


def temper(distribution: Row, temperature: float, best: int | None = None) -> Row:
    """The distribution at a temperature: below 1 sharper, above 1 flatter, at 0 the best token alone."""
    if temperature == 1.0:
        return distribution
    if temperature == 0.0:
        only = np.zeros_like(distribution)
        only[int(np.argmax(distribution)) if best is None else best] = 1.0
        return only
    with np.errstate(divide="ignore"):
        logs = np.log(distribution) / np.float32(temperature)
    weights = np.exp(logs - logs.max())
    tempered: Row = weights / weights.sum()
    return tempered


def select(
    distribution: Row, threshold: float, max_width: int, ends: Collection[int] = (), best: int | None = None
) -> Chosen:
    """Every token with probability ≥ threshold, at most `max_width`; the best one if there is none.

    Equal probabilities stand in order of id. An end token that is the best ends the run alone; others are
    dropped from the set. `best` is the best token where logits have told it: probabilities may round to ties.
    """
    best = int(np.argmax(distribution)) if best is None else best
    if best in ends:
        return Chosen([], [], best)
    passing = np.flatnonzero(distribution >= threshold)
    if len(passing) > max_width:  # sorting the few that are needed is enough
        probabilities = distribution[passing]
        passing = passing[probabilities >= np.partition(probabilities, -max_width)[-max_width]]
    rank = np.lexsort((passing, passing != best, -distribution[passing]))
    order = passing[rank][:max_width].tolist()
    tokens = [token for token in order if token not in ends] or [best]
    return Chosen(tokens, [float(distribution[token]) for token in tokens])
