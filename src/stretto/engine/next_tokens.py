"""Drafts by a head that reads hidden states (`draft="mtp"`, EAGLE-3): its cells, and one text's drafts.

The head's cell of a token is made of the token and the decoder's hidden states of the token before, which
come out of the pass that computed that one. Texts share such cells by their tokens as in the prefix cache,
within their domain. Drafts change no token of a text, so where a state is not known (of a token whose
K and V were cached by a request without drafts) the head does without it.
"""

from __future__ import annotations

from itertools import count
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, NextHead
from stretto.cache.cells import Cells
from stretto.cache.prefix import Domain, PrefixCache
from stretto.cache.radix import common
from stretto.errors import CacheFull

Floats = NDArray[np.float32]
CHUNK = 256  # tokens in a pass of the layer, and states that wait for one
LEAST = 0.3  # probability of a token that is drafted


class HeadCells:
    """The cells of a head that drafts; callers hold the runner's lock."""

    def __init__(self, head: NextHead, n_cells: int, ends: frozenset[int]) -> None:
        head.open(n_cells)
        self.head = head
        self.ends = ends
        self.cells = Cells(n_cells, None)
        self.prefixes = PrefixCache(self.cells)
        self.texts: WeakSet[NextTokens] = WeakSet()
        self._ids = count(1)

    def new_id(self) -> int:
        """An id that no text has had."""
        return next(self._ids)

    def match(self, text: NextTokens, tokens: list[int]) -> int:
        """Share the longest prefix of tokens that another text of the same domain has cells of."""
        source, n = self.prefixes.match(tokens, text.domain)
        for other in self.texts:
            if other is not text and other.domain == text.domain:
                shared = common(other.exact_tokens, tokens)
                if shared > n:
                    source, n = other.id, shared
        if source is not None and n:
            self.cells.copy(source, text.id, 0, n)
        return n

    def run(self, text: NextTokens, tokens: list[int], start: int, states: Floats) -> tuple[Floats, Floats]:
        """Compute tokens from a position on; the logits behind the last one, and its state."""
        if self.cells.n_free < len(tokens) and not self.prefixes.evict(len(tokens)):
            raise CacheFull("the head for drafts has no free cell", n_needed=len(tokens), n_free=0)
        vectors, batch = self.head.join(tokens, states), Batch()
        for i, vector in enumerate(vectors):
            batch.add_vector(vector, start + i, (text.id,), logits=i == len(tokens) - 1)
        try:
            self.cells.hold()
            batch.place(self.cells)
            logits, made = self.head.forward(batch)
            self.cells.commit()
        except BaseException:
            self.cells.rollback()
            raise
        return logits[0], made[-1:]


class NextTokens:
    """Drafts for one text, whose hidden states it is given pass by pass."""

    def __init__(self, cells: HeadCells, domain: Domain) -> None:
        self.id, self.domain, self.sites = cells.new_id(), domain, cells.head.sites
        self._cells = cells
        self._tokens: list[int] = []  # of which it has cells, or will never have
        self._n_exact = 0  # the first of them that all have cells, from states that were known
        self._is_whole = True  # nothing is missing behind those
        self._first = 0  # the index of the token whose state is the first of `_states`
        self._states: Floats | None = None
        self._has_started = False
        cells.texts.add(self)

    @property
    def exact_tokens(self) -> list[int]:
        """The leading tokens whose cells others may share."""
        return self._tokens[: self._n_exact]

    def take_states(self, tokens: list[int], first: int, states: Floats) -> None:
        """Take the states of the tokens from an index on, which a pass has just computed."""
        states = self._cells.head.fuse(states)
        known = self._states
        if known is None or not self._first <= first <= self._first + len(known):
            self._first, self._states = first, states
        else:
            self._states = np.concatenate([known[: first - self._first], states])
        if len(self._states) > CHUNK:
            self._guarded(tokens)

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """The head's most probable continuation, as far as it is probable."""
        draft: list[int] = []
        found = self._guarded(tokens)
        n = len(tokens)
        if found is None or len(self._tokens) != n:
            return draft
        try:
            for position in range(n, n + most):
                row, state = found
                best = int(row.argmax())
                token = best if self._cells.head.ids is None else int(self._cells.head.ids[best])
                if token in self._cells.ends or np.exp(row - row[best]).sum() * LEAST > 1:
                    break
                draft.append(token)
                if len(draft) < most:
                    found = self._cells.run(self, [token], position, state)
        except CacheFull:
            pass
        finally:
            self._cells.cells.remove(self.id, n)
        return draft

    def _guarded(self, tokens: list[int]) -> tuple[Floats, Floats] | None:
        try:
            return self._catch_up(tokens)
        except CacheFull:  # it goes on from where the text is, with what finds room
            self._cells.cells.remove(self.id)
            self._tokens, self._n_exact, self._is_whole = [], 0, False
            return None

    def _catch_up(self, tokens: list[int]) -> tuple[Floats, Floats] | None:
        """Compute the cells of all tokens before which a state is known; logits and state of the last one."""
        if self._states is None or not len(self._states):
            return None
        if not self._has_started:
            self._has_started = True
            n = self._cells.match(self, tokens[: self._first])
            self._tokens, self._n_exact = tokens[:n], n
        n = common(self._tokens, tokens)
        if n < len(self._tokens):  # rolled back
            self._cells.cells.remove(self.id, n)
            del self._tokens[n:]
            if n <= self._n_exact:
                self._n_exact, self._is_whole = n, True
        # Token i needs the state of i - 1. Where that is not known, at the first token that was computed for
        # this request, the head starts with a state of zeros, or with the token behind it.
        states = self._states[: max(0, len(tokens) - 1 - self._first)]
        stop = self._first + len(states) + 1
        found = None
        if n < self._first:
            self._is_whole = False
            self._tokens, n = list(tokens[: self._first]), self._first
        if n == self._first and n < len(tokens) and self._cells.head.skips_unknown:
            self._tokens.append(tokens[n])
            n += 1
            if self._is_whole:
                self._n_exact = n
        while n < min(stop, len(tokens)):
            end = min(n + CHUNK, stop, len(tokens))
            several = states[max(0, n - 1 - self._first) : end - 1 - self._first]
            if n == self._first:
                several = np.concatenate([np.zeros((1, states.shape[1]), np.float32), several])
            found = self._cells.run(self, tokens[n:end], n, several)
            self._tokens += tokens[n:end]
            if self._is_whole:
                self._n_exact = end
            n = end
        if n - 1 > self._first:  # the states before the last token are not needed again
            self._states, self._first = self._states[n - 1 - self._first :], n - 1
        return found

    def close(self) -> None:
        """Park the cells for texts that begin the same."""
        cells, self._states = self._cells, None
        cells.texts.discard(self)
        if self._n_exact:
            cells.prefixes.park(self.id, self.exact_tokens, domain=self.domain)
        else:
            cells.cells.remove(self.id)
