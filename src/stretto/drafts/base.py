"""The interface of drafters, and the length of the next draft."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


# The cached texts that a text may share cells with, the last used first; an item may be no token.
CachedTexts = Callable[[], Iterable[Sequence[object]]]


@runtime_checkable
class CacheDrafter(Drafter, Protocol):
    """A drafter that looks into cached texts too."""

    def begin_among(self, tokenizer: Tokenizer, cached: CachedTexts) -> Proposer:
        """A proposer for a new text; `cached` is for calls of its `propose` only."""
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


# A draft as a tree: continuations of one text that share the tokens they begin with.
#
# All tokens of a tree are computed in one forward pass. A token attends to the text and to the tokens on
# its own way down from the root, so its logits are those of a text that goes on that way alone.

ROOT = 0  # the last token of the text; drafted tokens are nodes from 1 on, in the order of their rows


class DraftTree:
    """Drafted tokens; continuations that begin alike share nodes. A single continuation is a line.

    A *branch* is the way from the root to a leaf. Branch 0 is the first continuation, which is the one that
    the drafter thinks most probable.

    >>> tree = DraftTree([[7, 8], [7, 9, 4]])
    >>> tree.tokens, tree.branches
    ([7, 8, 9, 4], [[1, 2], [1, 3, 4]])
    >>> tree.child(tree.child(ROOT, 7), 9)
    3
    """

    __slots__ = ("_children", "branches", "depths", "tokens")

    def __init__(self, continuations: Iterable[Sequence[int]] = ()) -> None:
        self.tokens: list[int] = []  # of node 1, 2, …
        self.depths: list[int] = [0]  # of each node, the root included
        self.branches: list[list[int]] = []  # the nodes of each, from the top down
        self._children: dict[tuple[int, int], int] = {}  # of a node, by token
        for continuation in continuations:
            self.add(continuation)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """The length of its longest branch."""
        return max(self.depths)

    def child(self, node: int, token: int) -> int:
        """The node of a token behind another node; 0 if it was not drafted."""
        return self._children.get((node, token), 0)

    def add(self, continuation: Sequence[int], room: int | None = None) -> None:
        """Add a continuation, cut off where the tree would have more than `room` tokens."""
        way, node = [], ROOT
        for token in continuation:
            child = self.child(node, token)
            if not child:
                if room is not None and len(self.tokens) >= room:
                    break
                self.tokens.append(token)
                self.depths.append(self.depths[node] + 1)
                child = self._children[node, token] = len(self.tokens)
            way.append(child)
            node = child
        for branch in self.branches:
            if branch[: len(way)] == way:
                return  # nothing new
            if way[: len(branch)] == branch:
                branch[:] = way
                return
        if way:
            self.branches.append(way)

    def list_branches(self) -> list[list[int]]:
        """For each node, the root included, the branches that go through it, lowest number first."""
        found: list[list[int]] = [[] for _ in self.depths]
        for number, branch in enumerate(self.branches):
            for node in (ROOT, *branch):
                found[node].append(number)
        return found

    def branch_through(self, node: int) -> int:
        """The first branch that goes through a node."""
        return next((number for number, branch in enumerate(self.branches) if node in branch), 0)

    def n_common(self, branch: int) -> int:
        """How many nodes a branch shares with branch 0."""
        pairs = zip(self.branches[0], self.branches[branch], strict=False)
        return next((n for n, (left, right) in enumerate(pairs) if left != right), 0)


NO_DRAFT = DraftTree()
