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
    """The occurrences of each n-gram, in one text that grows."""

    MAX_OCCURRENCES = 32  # looked at for one draft, the last ones first

    def __init__(self, n: int) -> None:
        self._n = n
        self._ends: dict[tuple[int, ...], int] = {}  # of an n-gram: the index after its last occurrence
        self._earlier: dict[int, int] = {}  # of such an index: that of the occurrence before
        self._last: tuple[int, ...] = ()
        self._at: int | None = None  # the index after the previous occurrence of the last n-gram
        self._n_read = 0  # tokens

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """The tokens that followed the previous occurrence of the last n-gram."""
        self._read(tokens)
        return [] if self._at is None else _following(tokens, self._at, most)

    def propose_branches(self, tokens: list[int], most: int, branches: int) -> list[list[int]]:
        """What followed its occurrences, each once, the last one first."""
        self._read(tokens)
        found: list[list[int]] = []
        at, n_seen = self._at, 0
        while at is not None and len(found) < branches and n_seen < self.MAX_OCCURRENCES:
            following = _following(tokens, at, most)
            if following not in found:
                found.append(following)
            at, n_seen = self._earlier.get(at), n_seen + 1
        return found

    def _read(self, tokens: list[int]) -> None:
        """Note the n-grams that are new, and where the last one occurred before."""
        n, size = self._n, len(tokens)
        n_read = self._n_read
        if n_read > size or (n_read and tuple(tokens[n_read - n : n_read]) != self._last):
            self._ends, self._earlier, self._at, n_read = {}, {}, None, 0  # the text was cut or shifted
        if size <= n:
            self._n_read = 0
            return
        for end in range(max(n_read, n - 1) + 1, size):
            self._note(tuple(tokens[end - n : end]), end)
        if n_read < size:
            self._last = tuple(tokens[size - n :])
            self._at = self._ends.get(self._last)
            self._note(self._last, size)
        self._n_read = size

    def _note(self, run: tuple[int, ...], end: int) -> None:
        before = self._ends.get(run)
        if before is not None:
            self._earlier[end] = before
        self._ends[run] = end

    def close(self) -> None:
        """Nothing to free."""


def _following(tokens: list[int], at: int, most: int) -> list[int]:
    """The tokens from an index on; a passage that ends with the text repeats from its start."""
    draft = tokens[at : at + most]
    while len(draft) < most:
        draft += tokens[at : at + most - len(draft)]
    return draft
