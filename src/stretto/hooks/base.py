"""`HookRow`, the argument of a hook's `batch` besides the logits, and checks that several hooks share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest, wrong_value
from stretto.sampling.params import check_integer

Row = NDArray[np.float32]  # float32[n_vocab], writable
Rows = NDArray[np.float32]  # float32[k, n_vocab], writable

MAX_TOKENS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class HookRow:
    """The request of a row: `hook.batch(logits, rows)` gets one for each row of `logits`.

    `tokens` are the request's ids so far, prompt and answer: its own list, to be read only. `request` is a
    number that the request keeps to its end, and that no other request has.
    """

    tokens: list[int]
    request: int


def token_ids(name: str, tokens: Iterable[int]) -> list[int]:
    """The tokens as a list; `InvalidRequest` names the argument if they are not ids."""
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
        raise wrong_value(name, tokens, "a list of ids")
    ids = list(tokens)
    for token in ids:
        check_integer(f"a token of {name}", token, 0, MAX_TOKENS, param=name)
    return [int(token) for token in ids]


def check_vocabulary(hook: str, highest: int, n_vocab: int) -> None:
    """Raise `InvalidRequest` if a hook names a token that the logits do not have."""
    if highest >= n_vocab:
        raise InvalidRequest(
            f"{hook} names token {highest}; the vocabulary ends at {n_vocab - 1}",
            param="hooks",
            value=highest,
        )


# Assigns calls of a hook to requests, and finds where their answers start.

MAX_REQUESTS = 1024  # that are remembered; the least recently used are dropped


@dataclass(eq=False)
class Trail:
    """One request, as known from the calls of a hook."""

    n_prompt: int  # tokens at the first call: the answer starts here
    tokens: list[int] = field(default_factory=list)  # the list of the last call without a `HookRow`
    n_tokens: int = 0  # its length then
    last: int = -1  # and the last of them

    def same_list(self, tokens: list[int]) -> bool:
        """Whether `tokens`, the list of the last call, was only appended to since."""
        return len(tokens) >= self.n_tokens and tokens[self.n_tokens - 1] == self.last

    def copied_by(self, tokens: list[int]) -> bool:
        """Whether `tokens` is a copy of the list of the last call, at most one token longer."""
        n = len(self.tokens)
        return n == self.n_tokens and 0 <= len(tokens) - n <= 1 and tokens[:n] == self.tokens


class Trails:
    """Tracks any number of requests at once."""

    def __init__(self) -> None:
        self._by_number: dict[int, Trail] = {}
        # By the identity of the list. A list is held, so no other one can have its identity.
        self._by_list: dict[int, Trail] = {}

    def of_row(self, row: HookRow) -> Trail:
        """The request of a row, by its number."""
        return self._keep(self._by_number, row.request, self._by_number.get(row.request), row.tokens)

    def of_tokens(self, tokens: list[int]) -> Trail:
        """The request, or the sequence of a user's own loop, that has these tokens now.

        The same list as before is the same sequence. A copy counts as a new text unless it extends the last
        call's list by at most one token.
        """
        trail = self._by_list.get(id(tokens))
        if trail is None or not trail.same_list(tokens):
            key = next(reversed(self._by_list), None)
            trail = None
            if key is not None and self._by_list[key].copied_by(tokens):
                trail = self._by_list.pop(key)
        trail = self._keep(self._by_list, id(tokens), trail, tokens)
        trail.tokens, trail.n_tokens, trail.last = tokens, len(tokens), tokens[-1] if tokens else -1
        return trail

    @staticmethod
    def _keep(trails: dict[int, Trail], key: int, trail: Trail | None, tokens: list[int]) -> Trail:
        """Move a trail, or a new one, to the end: the most recently used."""
        trails.pop(key, None)
        trails[key] = trail = trail or Trail(len(tokens))
        if len(trails) > MAX_REQUESTS:
            del trails[next(iter(trails))]
        return trail
