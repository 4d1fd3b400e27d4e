"""The tree of alternatives: nodes are texts, branches are tokens that may follow. Each is computed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Branch:
    """A token that may come next."""

    token: int
    text: str
    probability: float
    node: Node | None = None  # once it was followed


@dataclass
class Node:
    """A text: its sequence in the KV cache, the branches after it, and which of them is selected."""

    sequence: Any
    parent: Node | None
    text: str
    branches: list[Branch] = field(default_factory=list)
    selected: int = 0

    @property
    def depth(self) -> int:
        """How many tokens behind the prompt it is."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def path(self) -> list[Node]:
        """The nodes from the prompt to this one."""
        return [self] if self.parent is None else [*self.parent.path, self]


class Tree:
    """A walk through the tree, from the prompt on. Every node keeps its sequence: a fork of its parent's."""

    def __init__(self, llm: Any, prompt: str, width: int = 8) -> None:
        self._llm = llm
        self._width = width
        self.prompt = prompt
        self.n_computed = 0  # tokens, behind the prompt
        self.here = self._node(llm.sequence(prompt), None, "")

    def select(self, by: int) -> None:
        """Move the selection among the branches."""
        self.here.selected = (self.here.selected + by) % len(self.here.branches)

    def follow(self) -> bool:
        """Go along the selected branch; False at the end of a text."""
        branch = self.here.branches[self.here.selected]
        if branch.token in self._llm.tokenizer.end_ids:
            return False
        if branch.node is None:
            sequence = self.here.sequence.fork()
            sequence.append(branch.token)
            branch.node = self._node(sequence, self.here, branch.text)
            self.n_computed += 1
        self.here = branch.node
        return True

    def back(self) -> None:
        """Go back to the text before the last token."""
        if self.here.parent is not None:
            self.here = self.here.parent

    def run_on(self, n: int = 16) -> None:
        """Follow the most probable branches, n of them or to the end of the text."""
        for _ in range(n):
            self.here.selected = 0
            if not self.follow():
                return

    @property
    def text(self) -> str:
        """The text up to here, behind the prompt."""
        return "".join(node.text for node in self.here.path)

    @property
    def logprob(self) -> float:
        """The log-probability of the text up to here."""
        return float(sum(np.log(node.branches[node.selected].probability) for node in self.here.path[:-1]))

    def _node(self, sequence: Any, parent: Node | None, text: str) -> Node:
        logits = sequence.logits.astype(np.float64)
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        best = np.argpartition(-shares, self._width)[: self._width]
        best = best[np.argsort(-shares[best], kind="stable")]
        spelled = self._llm.tokenizer.spelled
        branches = [Branch(int(token), spelled(int(token)), float(shares[token])) for token in best]
        return Node(sequence, parent, text, branches)
