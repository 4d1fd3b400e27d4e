"""A draft as a tree: continuations of one text that share the tokens they begin with.

All tokens of a tree are computed in one forward pass. A token attends to the text and to the tokens on its
own way down from the root, so its logits are those of a text that goes on that way alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

    def branches_of(self) -> list[list[int]]:
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
