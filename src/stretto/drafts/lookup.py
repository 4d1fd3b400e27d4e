"""Prompt lookup: where the last few tokens stood before, what followed them then may follow again."""

from __future__ import annotations

from stretto.sampling.params import check_integer
from stretto.text.tokenizer import Tokenizer


class PromptLookup:
    """Guesses by looking the last `ngram` tokens up in the text so far, prompt included.

    It costs a few microseconds a token. Copying, editing and quoting repeat whole passages; prose does not.
    """

    def __init__(self, ngram: int = 3, most: int = 8) -> None:
        check_integer("ngram", ngram, 1, 64)
        check_integer("most", most, 1, 256)
        self.ngram, self.most = int(ngram), int(most)

    def begin(self, tokenizer: Tokenizer) -> Lookup:
        """A lookup in a text of its own."""
        return Lookup(self.ngram)


class Lookup:
    """Where each run of n tokens was last seen, for one text that grows."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._behind: dict[tuple[int, ...], int] = {}  # the index behind its last occurrence
        self._last: tuple[int, ...] = ()
        self._at: int | None = None  # the index behind the occurrence before the last tokens
        self._seen = 0  # tokens that have been read

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """What followed the last n tokens when they stood there before."""
        n, size = self._n, len(tokens)
        if size <= n:
            return []
        if self._seen > size or (self._seen and tuple(tokens[self._seen - n : self._seen]) != self._last):
            self._behind, self._seen = {}, 0  # the text was cut or moved
        for end in range(max(self._seen, n - 1) + 1, size):
            self._behind[tuple(tokens[end - n : end])] = end
        if self._seen < size:
            self._last = tuple(tokens[size - n :])
            self._at = self._behind.get(self._last)
            self._behind[self._last] = self._seen = size
        at = self._at
        if at is None:
            return []
        found = tokens[at : at + most]
        while len(found) < most:  # a passage that repeats itself: it goes on from its own beginning
            found += tokens[at : at + most - len(found)]
        return found

    def close(self) -> None:
        """Nothing to let go."""
