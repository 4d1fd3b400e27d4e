"""Prompt lookup and suffix drafts: the draft is what followed the last tokens where they occurred before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.drafts.base import CachedTexts
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
        found: list[list[int]] = []
        for at in self.occurrences(tokens):
            if len(found) == branches:
                break
            following = _following(tokens, at, most)
            if following not in found:
                found.append(following)
        return found

    def occurrences(self, tokens: list[int]) -> Iterator[int]:
        """The indices behind earlier occurrences of the last n-gram, the last one first."""
        self._read(tokens)
        at, n_seen = self._at, 0
        while at is not None and n_seen < self.MAX_OCCURRENCES:
            yield at
            at, n_seen = self._earlier.get(at), n_seen + 1

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


class SuffixLookup:
    """Drafts by looking the end of the text up, as much of it as possible: in the text and in cached ones.

    Cached texts are those whose cells a prompt might share, of the same `cache_salt` and adapter: what one
    key's requests leave in the cache never drafts for another key. The longer the end that was found, the
    longer the draft. Agents that repeat a task, answers that are generated again and edits of a file that
    was read before profit beyond what `PromptLookup` finds in the text itself.
    """

    def __init__(self, ngram: int = 3, most: int = 16) -> None:
        check_integer("ngram", ngram, 2, 64)
        check_integer("most", most, 1, 256)
        self.ngram, self.most = int(ngram), int(most)

    def begin(self, tokenizer: Tokenizer) -> Suffixes:
        """A lookup in a text of its own, and in no other."""
        return Suffixes(self.ngram)

    def begin_among(self, tokenizer: Tokenizer, cached: CachedTexts) -> Suffixes:
        """A lookup in a text of its own and in cached ones."""
        return Suffixes(self.ngram, cached)


MAX_CACHED_TOKENS = 1 << 17  # that are searched, of the most recently used texts
MAX_SUFFIX_TOKENS = 64  # that are compared
SEPARATOR = -1  # behind each cached text, and in place of what is no token


class Suffixes:
    """The occurrences of the end of one text that grows, in itself and in others."""

    def __init__(self, n: int, cached: CachedTexts | None = None) -> None:
        self._n = n
        self._own = Lookup(n)
        self._cached = cached
        self._others: NDArray[np.int32] | None = None  # the cached texts one behind the other, once needed

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """What followed the longest end that was found."""
        return next(iter(self.propose_branches(tokens, most, 1)), [])

    def propose_branches(self, tokens: list[int], most: int, branches: int) -> list[list[int]]:
        """What followed the ends that were found, each once, the longest end first."""
        ends = self._found(tokens, most)
        ends.sort(key=lambda end: -end[0])  # stable: the text itself comes first, and in it what was last
        found: list[list[int]] = []
        for n_same, following in ends:
            draft = following[: min(most, 2 * n_same)]
            if draft and not any(other[: len(draft)] == draft for other in found):
                found.append(draft)
                if len(found) == branches:
                    break
        return found

    def _found(self, tokens: list[int], most: int) -> list[tuple[int, list[int]]]:
        """How many last tokens of the text stand somewhere, and what followed them there."""
        own = [
            (_n_same(tokens, tokens, at), _following(tokens, at, most))
            for at in self._own.occurrences(tokens)
        ]
        others = self._read_others()
        if len(others) <= self._n or len(tokens) < self._n:
            return own
        hits = np.flatnonzero(others[self._n - 1 : -1] == tokens[-1])
        for back in range(1, self._n):
            hits = hits[others[hits + (self._n - 1 - back)] == tokens[-1 - back]]
        for hit in hits[-Lookup.MAX_OCCURRENCES :][::-1].tolist():
            at = hit + self._n
            window = others[max(0, at - MAX_SUFFIX_TOKENS) : at].tolist()
            own.append((_n_same(tokens, window, len(window)), _up_to_end(others[at : at + most])))
        return own

    def _read_others(self) -> NDArray[np.int32]:
        """The cached texts, read once: those that are used later come last."""
        if self._others is None:
            several: list[NDArray[np.int32]] = []
            room = MAX_CACHED_TOKENS
            for items in self._cached() if self._cached is not None else ():
                if room <= 0:
                    break
                several.append(_as_numbers(items[:room]))
                room -= len(items)
            self._others = np.concatenate(several[::-1]) if several else np.empty(0, np.int32)
        return self._others

    def close(self) -> None:
        """Forget the cached texts."""
        self._cached, self._others = None, None


def _as_numbers(items: Sequence[object]) -> NDArray[np.int32]:
    """int32[n + 1]: tokens, and the separator behind them."""
    numbers: Iterable[int] = (one if type(one) is int else SEPARATOR for one in items)
    return np.array([*numbers, SEPARATOR], np.int32)


def _up_to_end(tokens: NDArray[np.int32]) -> list[int]:
    """The tokens before the end of their text."""
    ends = np.flatnonzero(tokens < 0)
    found: list[int] = (tokens[: ends[0]] if len(ends) else tokens).tolist()
    return found


def _n_same(tokens: list[int], others: list[int], at: int) -> int:
    """How many of the last tokens stand before an index of others too."""
    most = min(at, len(tokens), MAX_SUFFIX_TOKENS)
    for n in range(1, most + 1):
        if tokens[-n] != others[at - n]:
            return n - 1
    return most
