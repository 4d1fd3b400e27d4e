"""Reads windows with one model or several in lockstep, a piece at a time: no text's logits are ever held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.errors import ContextOverflow, InvalidRequest, ModelError, wrong_value
from stretto.llm import LLM
from stretto.text.tokenizer import Tokenizer

# Cuts a text into windows: llama.cpp's, which do not overlap, and strided ones.

MIN_WINDOW = 4  # the shortest whose second half has a token to score


@dataclass(frozen=True)
class Window:
    """Tokens that are read together; those from index `first` on are scored, each given all before it."""

    ids: list[int]
    first: int

    @property
    def n_scored(self) -> int:
        """How many tokens are scored."""
        return len(self.ids) - self.first


def text_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text as llama.cpp's tools read it: BOS if the model asks, and nothing in it is special."""
    ids = tokenizer.encode(text)
    return [*tokenizer.prefix_ids, *ids] if tokenizer.add_bos else ids


def half_scored_windows(ids: list[int], length: int, bos: int | None) -> list[Window]:
    """llama.cpp's windows: whole ones side by side; of each the second half is scored.

    With `bos` it replaces the first token of each window. The half is rounded as llama.cpp does: of 512
    tokens, numbers 257 to 511 are scored. What is left at the end of the text is not read.

    >>> [window.n_scored for window in half_scored_windows(list(range(20)), 8, None)]
    [3, 3]
    """
    check_length(length)
    if len(ids) < length:
        raise InvalidRequest(
            f"the text has {len(ids)} tokens, fewer than a window of {length}; "
            f"give a longer text, or a window of at most {len(ids)}",
            param="window",
            value=length,
        )
    pieces = [ids[at : at + length] for at in range(0, len(ids) - length + 1, length)]
    first = length // 2 + 1  # the row of token length // 2 predicts the one behind it
    return [Window(piece if bos is None else [bos, *piece[1:]], first) for piece in pieces]


def strided_windows(ids: list[int], length: int, stride: int) -> list[Window]:
    """Overlapping windows: each scores the tokens after the one before, so that all but one are scored.

    Every token is scored once, with at least `length - stride` tokens before it where the text has them.

    >>> [(len(window.ids), window.n_scored) for window in strided_windows(list(range(20)), 8, 4)]
    [(8, 7), (8, 4), (8, 4), (8, 4)]
    """
    check_length(length)
    if not 1 <= stride <= length:
        raise wrong_value("stride", stride, f"from 1 to {length}, the window")
    windows: list[Window] = []
    scored = 1  # nothing comes before the first token
    for at in range(0, len(ids), stride):
        end = min(at + length, len(ids))
        first = scored - at
        if first == 0:  # windows side by side: the first token has no context, as in transformers
            first = 1
        if end - at > first:
            windows.append(Window(ids[at:end], first))
        scored = end
        if end == len(ids):
            break
    return windows


def check_length(length: int) -> None:
    """Raise for a window that is too short to score anything."""
    if length < MIN_WINDOW:
        raise wrong_value("window", length, f"at least {MIN_WINDOW} tokens")


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
