"""Cuts a text into windows: llama.cpp's, which do not overlap, and strided ones."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.errors import InvalidRequest
from stretto.text.tokenizer import Tokenizer

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
        raise InvalidRequest(
            f"stride is {stride}; it takes 1 to {length}, the window", param="stride", value=stride
        )
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
        raise InvalidRequest(
            f"window is {length}; it takes at least {MIN_WINDOW} tokens", param="window", value=length
        )
