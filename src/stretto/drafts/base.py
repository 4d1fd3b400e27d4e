"""What whoever guesses has to do, and how many tokens are worth guessing."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from stretto.text.tokenizer import Tokenizer


class Guesser(Protocol):
    """Guesses how one text goes on."""

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow `tokens`, which must not be changed; none is fine."""
        ...

    def close(self) -> None:
        """The text has ended."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """What `draft=` takes: makes a guesser for each text."""

    most: int  # tokens of a guess

    def begin(self, tokenizer: Tokenizer) -> Guesser:
        """A guesser for a new text of a model with this tokenizer."""
        ...


class DraftLength:
    """How many tokens to guess next, by how the last guesses did.

    Guesses that hold get longer. One that fails at once is followed by a pause, and by a longer one if the
    next fails too: where nothing repeats, guessing costs next to nothing.

    >>> length = DraftLength(8)
    >>> length.next()
    2
    >>> length.learn(2, 2)
    >>> length.next()
    4
    """

    FIRST = 2
    LONGEST_PAUSE = 64  # tokens

    def __init__(self, most: int) -> None:
        self._most = most
        self._n = min(self.FIRST, most)
        self._failures = 0
        self._pause = 0

    def next(self) -> int:
        """How many tokens to guess now, 0 during a pause."""
        if self._pause:
            self._pause -= 1
            return 0
        return self._n

    def learn(self, guessed: int, right: int) -> None:
        """Of so many guessed tokens so many were right."""
        if right == guessed:
            self._n = min(max(self._n, 2 * right), self._most)
            self._failures = 0
        elif right:
            self._n = right + 1
            self._failures = 0
        else:
            self._n = min(self.FIRST, self._most)
            self._failures += 1
            self._pause = min(1 << self._failures, self.LONGEST_PAUSE)
