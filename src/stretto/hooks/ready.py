"""Hooks that need nothing but the row and the tokens so far; one object may serve any number of requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isnan

import numpy as np

from stretto.errors import InvalidRequest
from stretto.sampling.hooks.row import MAX_TOKENS, HookRow, Row, Rows, check_vocabulary, token_ids
from stretto.sampling.params import check_integer


class Ban:
    """Excludes tokens.

    >>> logits = np.zeros(4, np.float32)
    >>> Ban([1, 2])(logits, [])
    >>> logits.tolist()
    [0.0, -inf, -inf, 0.0]
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens = tuple(sorted(set(token_ids("tokens", tokens))))
        self._ids = np.array(self.tokens, np.intp)
        self._highest = max(self.tokens, default=-1)

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Exclude them from one row."""
        check_vocabulary("Ban", self._highest, len(logits))
        logits[self._ids] = -np.inf

    def batch(self, logits: Rows, rows: list[HookRow]) -> None:
        """Exclude them from all rows."""
        check_vocabulary("Ban", self._highest, logits.shape[1])
        logits[:, self._ids] = -np.inf

    def __repr__(self) -> str:
        return f"Ban({list(self.tokens)})"


class Only:
    """Excludes all tokens but these.

    >>> logits = np.zeros(4, np.float32)
    >>> Only([1, 2])(logits, [])
    >>> logits.tolist()
    [-inf, 0.0, 0.0, -inf]
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens = tuple(sorted(set(token_ids("tokens", tokens))))
        if not self.tokens:
            raise InvalidRequest("tokens are empty; give at least one", param="tokens")
        self._ids = np.array(self.tokens, np.intp)

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Exclude the others from one row."""
        check_vocabulary("Only", self.tokens[-1], len(logits))
        kept = logits[self._ids]
        logits[:] = -np.inf
        logits[self._ids] = kept

    def batch(self, logits: Rows, rows: list[HookRow]) -> None:
        """Exclude the others from all rows."""
        check_vocabulary("Only", self.tokens[-1], logits.shape[1])
        kept = logits[:, self._ids]
        logits[:] = -np.inf
        logits[:, self._ids] = kept

    def __repr__(self) -> str:
        return f"Only({list(self.tokens)})"


class Bias:
    """Adds to the logits of single tokens; −inf excludes one.

    >>> logits = np.zeros(4, np.float32)
    >>> Bias({0: 1.5, 3: -2})(logits, [])
    >>> logits.tolist()
    [1.5, 0.0, 0.0, -2.0]
    """

    def __init__(self, bias: Mapping[int, float]) -> None:
        if not isinstance(bias, Mapping):
            raise InvalidRequest(
                f"bias must map token ids to numbers, not be {bias!r}", param="bias", value=bias
            )
        for token, value in bias.items():
            check_integer("a token of bias", token, 0, MAX_TOKENS, param="bias")
            fine = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            if not fine or isnan(value) or value == np.inf:
                raise InvalidRequest(
                    f"bias of token {token} must be a number or −inf, not {value!r}",
                    param="bias",
                    value=value,
                )
        self.bias = {int(token): float(value) for token, value in bias.items()}
        self._ids = np.fromiter(self.bias.keys(), np.intp)
        self._values = np.fromiter(self.bias.values(), np.float32)
        self._highest = max(self.bias, default=-1)

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Add to one row."""
        check_vocabulary("Bias", self._highest, len(logits))
        logits[self._ids] += self._values

    def batch(self, logits: Rows, rows: list[HookRow]) -> None:
        """Add to all rows."""
        check_vocabulary("Bias", self._highest, logits.shape[1])
        logits[:, self._ids] += self._values

    def __repr__(self) -> str:
        return f"Bias({self.bias})"


class NoRepeat:
    """Excludes tokens that would repeat an n-gram of the prompt or the answer.

    The tokens so far are searched anew each time, by a scan of the list: some twenty microseconds a thousand.

    >>> logits = np.zeros(4, np.float32)
    >>> NoRepeat(2)(logits, [0, 3, 1, 0])  # 0, 3 was there
    >>> logits.tolist()
    [0.0, 0.0, 0.0, -inf]
    """

    def __init__(self, n: int) -> None:
        check_integer("n", n, 1, MAX_TOKENS)
        self.n = int(n)

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Exclude every token that would complete an n-gram for the second time."""
        if self.n == 1:
            logits[tokens] = -np.inf
        elif len(tokens) >= self.n:
            logits[self._followers(tokens)] = -np.inf

    def _followers(self, tokens: list[int]) -> list[int]:
        """The tokens after earlier occurrences of the last n − 1 tokens."""
        begin, end = tokens[1 - self.n :], len(tokens) - 1
        repeated: list[int] = []
        at = self.n - 3  # the last token of `begin` is searched after this index
        while True:
            try:
                at = tokens.index(begin[-1], at + 1, end)
            except ValueError:
                return repeated
            if tokens[at - self.n + 2 : at + 1] == begin:
                repeated.append(tokens[at + 1])

    def __repr__(self) -> str:
        return f"NoRepeat({self.n})"
