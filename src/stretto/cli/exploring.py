"""`stretto parallel --explore`: the tree of what a model might say, walked with the arrow keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from prompt_toolkit import Application
from prompt_toolkit.application import get_app
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl

# The tree of alternatives: nodes are texts, branches are tokens that may follow. Each is computed once.


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
        self.llm = llm
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
        if branch.token in self.llm.tokenizer.end_ids:
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
        spelled = self.llm.tokenizer.spelled
        branches = [Branch(int(token), spelled(int(token)), float(shares[token])) for token in best]
        return Node(sequence, parent, text, branches)


# The tree on the screen: the text so far, the branches with their probabilities, and the keys.

HELP = "↑↓ select   → follow   ← back   Enter run on   q quit"
BAR = 24  # characters of a probability of 1


def render_tree(tree: Tree) -> StyleAndTextTuples:
    """The whole screen."""
    lines: StyleAndTextTuples = [("class:prompt", tree.prompt), ("bold", tree.text), ("", "\n\n")]
    for i, branch in enumerate(tree.here.branches):
        style = "reverse" if i == tree.here.selected else ""
        lines.append((style, render_branch(branch)))
        lines.append(("", "\n"))
    facts = f"{tree.here.depth} tokens, log-probability {tree.logprob:.2f}, {tree.n_computed} computed in all"
    return [*lines, ("", "\n"), ("italic", facts), ("", "\n"), ("class:help", HELP)]


def render_branch(branch: Branch) -> str:
    """A branch: whether it was followed, its probability, its text."""
    bar = "█" * round(BAR * branch.probability)
    text = branch.text.replace("\n", "↵") or "∅"
    return f"{'•' if branch.node else ' '} {branch.probability:6.1%} {bar:<{BAR}} {text}"


def explore(tree: Tree, **terminal: Any) -> str:
    """Walk through the tree until the user quits; return the text that was reached."""
    keys = KeyBindings()

    def bind(*names: str) -> Any:
        def wrap(action: Any) -> Any:
            for name in names:
                keys.add(name)(lambda event: action())
            return action

        return wrap

    bind("up", "k")(lambda: tree.select(-1))
    bind("down", "j")(lambda: tree.select(1))
    bind("right", "l")(tree.follow)
    bind("left", "h", "backspace")(tree.back)
    bind("enter")(tree.run_on)

    @keys.add("q")
    @keys.add("c-c")
    @keys.add("c-d")
    def leave(event: KeyPressEvent) -> None:
        get_app().exit(result=tree.text)

    window = Window(FormattedTextControl(lambda: render_tree(tree), show_cursor=False), wrap_lines=True)
    app: Application[str] = Application(Layout(window), key_bindings=keys, full_screen=True, **terminal)
    return app.run()
