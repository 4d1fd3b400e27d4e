"""From the logits of a set to the next set: combine, temper, and keep what reaches the threshold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.errors import InvalidRequest
from stretto.sampling.sampler import WRONG

Rows = NDArray[np.float32]  # float32[members, n_vocab]
Row = NDArray[np.float32]  # float32[n_vocab]


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


def shares(rows: Rows) -> tuple[Rows, Row]:
    """The next-token distribution of each member: float32[members, n_vocab]. NaN where there is none.

    Also log Σ exp of each row: a logit less that is its log-probability.
    """
    with np.errstate(invalid="ignore"):
        most = rows.max(axis=1, keepdims=True)
        each: Rows = np.exp(rows - most)
        total = each.sum(axis=1, keepdims=True)
        each /= total
        return each, (most + np.log(total))[:, 0]


def check_shares(each: Rows) -> None:
    """Raise `InvalidRequest` if logits were no numbers: one that is not spoils its whole row."""
    if not np.isfinite(each[:, 0]).all():
        raise InvalidRequest("the model's logits are not finite numbers; the file may be damaged")


def distributions(rows: Rows) -> Rows:
    """`shares`, of logits that are numbers."""
    each, _ = shares(rows)
    check_shares(each)
    return each


def distribution(row: Row) -> Row:
    """The distribution of a row that hooks may have changed: −inf excludes a token."""
    most = float(row.max())
    if not np.isfinite(most):
        raise InvalidRequest(WRONG[-1 if np.isnan(most) else -2 if most < 0 else -3])
    first: Row = shares(row[np.newaxis])[0][0]
    return first


def combine(each: Rows, weights: ArrayLike, how: str) -> Row:
    """The next distribution after a set: the mixture of its members', or that of the best member.

    A set of one has the distribution of its member, unchanged.
    """
    if len(each) == 1 or how == "best":
        first: Row = each[0]
        return first
    mixed: Row = np.asarray(weights, np.float32) @ each
    return mixed


def mixed_row(each: Rows, weights: ArrayLike) -> Row:
    """Logits of the mixture of some distributions: what hooks see after a set."""
    with np.errstate(divide="ignore", invalid="ignore"):
        row: Row = np.log(combine(each, weights, "mixture"))
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
