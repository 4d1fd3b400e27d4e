"""Prompt lookup: the draft is what followed the last n-gram where it occurred before."""

from __future__ import annotations

from stretto.sampling.params import check_integer
from stretto.text.tokenizer import Tokenizer


class PromptLookup:
    """Drafts by looking the last `ngram` tokens up in the text so far, prompt included.

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
    """The last occurrence of each n-gram, in one text that grows."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._ends: dict[tuple[int, ...], int] = {}  # of an n-gram: the index after its last occurrence
        self._last: tuple[int, ...] = ()
        self._at: int | None = None  # the index after the previous occurrence of the last n-gram
        self._n_read = 0  # tokens

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """The tokens that followed the previous occurrence of the last n-gram."""
        n, size = self._n, len(tokens)
        if size <= n:
            return []
        n_read = self._n_read
        if n_read > size or (n_read and tuple(tokens[n_read - n : n_read]) != self._last):
            self._ends, n_read = {}, 0  # the text was cut or shifted
        for end in range(max(n_read, n - 1) + 1, size):
            self._ends[tuple(tokens[end - n : end])] = end
        if n_read < size:
            self._last = tuple(tokens[size - n :])
            self._at = self._ends.get(self._last)
            self._ends[self._last] = size
        self._n_read = size
        at = self._at
        if at is None:
            return []
        draft = tokens[at : at + most]
        while len(draft) < most:  # the passage ends with the text: it repeats from its start
            draft += tokens[at : at + most - len(draft)]
        return draft

    def close(self) -> None:
        """Nothing to free."""
