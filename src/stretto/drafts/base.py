"""The interface of drafters, and the length of the next draft."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from stretto.text.tokenizer import Tokenizer


class Proposer(Protocol):
    """Drafts the continuation of one text."""

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow `tokens`, which must not be changed; may be empty."""
        ...

    def close(self) -> None:
        """Free everything; the text has ended."""
        ...


@runtime_checkable
class BranchProposer(Proposer, Protocol):
    """Drafts several continuations, for `draft_branches`."""

    def propose_branches(self, tokens: list[int], most: int, branches: int) -> list[list[int]]:
        """Up to `branches` continuations of up to `most` tokens each, the most probable first."""
        ...


Guesser = Proposer  # former name, kept for one release


@runtime_checkable
class Drafter(Protocol):
    """The value of `draft=`: makes a proposer for each text."""

    most: int  # tokens of a draft

    def begin(self, tokenizer: Tokenizer) -> Proposer:
        """A proposer for a new text of a model with this tokenizer."""
        ...


class DraftLength:
    """Length of the next draft, by how many tokens of the last ones were accepted.

    Accepted drafts get longer. A draft whose first token is rejected is followed by a pause, and by a longer
    one if the next is rejected too: where nothing repeats, drafting costs next to nothing.

    >>> length = DraftLength(8)
    >>> length.next()
    2
    >>> length.learn(2, 2)
    >>> length.next()
    4
    """

    FIRST_TOKENS = 2
    MAX_PAUSE_TOKENS = 64

    def __init__(self, most: int) -> None:
        self._most = most
        self._n = min(self.FIRST_TOKENS, most)
        self._failures = 0
        self._pause = 0

    def next(self) -> int:
        """How many tokens to draft now, 0 during a pause."""
        if self._pause:
            self._pause -= 1
            return 0
        return self._n

    def learn(self, n_draft: int, n_accepted: int) -> None:
        """Adapt to a draft of which `n_accepted` tokens were accepted."""
        if n_accepted == n_draft:
            self._n = min(max(self._n, 2 * n_accepted), self._most)
            self._failures = 0
        elif n_accepted:
            self._n = n_accepted + 1
            self._failures = 0
        else:
            self._n = min(self.FIRST_TOKENS, self._most)
            self._failures += 1
            self._pause = min(1 << self._failures, self.MAX_PAUSE_TOKENS)
