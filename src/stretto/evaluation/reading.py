"""Reads windows with one model or several in lockstep, a piece at a time: no text's logits are ever held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.errors import ContextOverflow, InvalidRequest, ModelError
from stretto.evaluation.windows import Window
from stretto.llm import LLM

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

PASS_TOKENS = 512
MAX_LOGITS = 1 << 24  # of one model at once: 64 MB
FIRST_SEQUENCE = 900_000  # ids of our own, far from those that a caller's batches are likely to use


@dataclass(frozen=True)
class Piece:
    """Rows of logits that predict some tokens of a window, by each model."""

    window: int  # its number
    targets: NDArray[np.int64]  # int64[n]
    rows: list[Floats]  # of each model: float32[n, n_vocab]


def read_windows(models: Sequence[LLM], windows: Sequence[Window]) -> Iterator[Piece]:
    """The rows of scored tokens, window by window; windows of one shape share passes."""
    for model in models:
        longest = max(len(window.ids) for window in windows)
        if longest - 1 > model.context_length:
            raise ContextOverflow(
                f"window is {longest} and the context {model.context_length}; take a smaller window, "
                "or load the model with more cells",
                n_tokens=longest,
                limit=model.context_length,
                param="window",
            )
    room = min(PASS_TOKENS, *(len(model.cells) for model in models))
    if any(model.spec.recurrent for model in models):
        room = 0  # windows would need a slot of states each, and there may be few
    for group in _groups(windows, room):
        try:
            yield from _read_group(models, windows, group)
        finally:
            for model in models:
                _forget(model, len(group))


def _groups(windows: Sequence[Window], room: int) -> Iterator[list[int]]:
    """Numbers of windows of one shape that have room together; at least one."""
    group: list[int] = []
    for number, window in enumerate(windows):
        length = len(window.ids)
        if group:
            first = windows[group[0]]
            same = (len(first.ids), first.first) == (length, window.first)
            if not same or (len(group) + 1) * length > room:
                yield group
                group = []
        group.append(number)
    if group:
        yield group


def _read_group(models: Sequence[LLM], windows: Sequence[Window], group: list[int]) -> Iterator[Piece]:
    """Step through windows of one shape together; the last token of each is only predicted."""
    shape = windows[group[0]]
    at, n_read = 0, len(shape.ids) - 1
    most_rows = MAX_LOGITS // max(model.spec.n_vocab for model in models)
    while at < n_read:
        scoring = at >= shape.first - 1
        most = min(PASS_TOKENS, most_rows) if scoring else PASS_TOKENS
        end = min(n_read if scoring else shape.first - 1, at + max(1, most // len(group)))
        ids = [windows[number].ids for number in group]
        rows = [_forward(model, [one[at:end] for one in ids], at, scoring) for model in models]
        if scoring:
            for index, number in enumerate(group):
                mine = slice(index * (end - at), (index + 1) * (end - at))
                targets = np.array(ids[index][at + 1 : end + 1])
                yield Piece(number, targets, [each[mine] for each in rows])
        at = end


def _forward(model: LLM, several: list[list[int]], position: int, wanted: bool) -> Floats:
    """Run the same stretch of several windows in one pass."""
    batch = Batch()
    for sequence, ids in zip(count(FIRST_SEQUENCE), several):
        for at, token in enumerate(ids, position):
            batch.add(token, at, (sequence,), logits=wanted)
    return model.forward(batch)


def _forget(model: LLM, n: int) -> None:
    for sequence in range(FIRST_SEQUENCE, FIRST_SEQUENCE + n):
        model.cells.remove(sequence)


def log_probabilities(rows: Floats, targets: NDArray[np.int64]) -> Doubles:
    """float64[n]: the log-probability of each target in its row; raises where a row has none."""
    top = rows.max(axis=1)
    sums = np.exp(rows - top[:, np.newaxis]).sum(axis=1, dtype=np.float64)
    chosen = rows[np.arange(len(rows)), targets].astype(np.float64)
    found: Doubles = chosen - top - np.log(sums)
    check_finite(found)
    return found


def check_finite(numbers: Doubles) -> None:
    """Raise for NaN and infinities, which would spoil every mean."""
    if not np.isfinite(numbers).all():
        at = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ModelError(
            f"the model's logits give {numbers[at]} as a log-probability or divergence; the file may be "
            "damaged, or its numbers too large for this backend: try backend='reference'"
        )


def check_same_vocabulary(model: LLM, reference: LLM) -> None:
    """Raise unless two models number their tokens alike; each has a cache of its own."""
    if model is reference:
        raise InvalidRequest("the reference is the model itself; load it a second time", param="reference")
    if model.spec.n_vocab != reference.spec.n_vocab:
        raise InvalidRequest(
            f"the model has {model.spec.n_vocab} tokens and the reference {reference.spec.n_vocab}; "
            "compare files of one model",
            param="reference",
        )
    if not model.tokenizer.same_as(reference.tokenizer):
        raise InvalidRequest(
            "the reference has another vocabulary; compare files of one model", param="reference"
        )
