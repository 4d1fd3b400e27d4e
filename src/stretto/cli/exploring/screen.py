"""The tree on the screen: the text so far, the branches with their probabilities, and the keys."""

from __future__ import annotations

from typing import Any

from prompt_toolkit import Application
from prompt_toolkit.application import get_app
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl

from stretto.cli.exploring.tree import Branch, Tree

HELP = "↑↓ select   → follow   ← back   Enter run on   q quit"
BAR = 24  # characters of a probability of 1


def shown(tree: Tree) -> StyleAndTextTuples:
    """The whole screen."""
    lines: StyleAndTextTuples = [("class:prompt", tree.prompt), ("bold", tree.text), ("", "\n\n")]
    for i, branch in enumerate(tree.here.branches):
        style = "reverse" if i == tree.here.selected else ""
        lines.append((style, line_of(branch)))
        lines.append(("", "\n"))
    facts = f"{tree.here.depth} tokens, log-probability {tree.logprob:.2f}, {tree.n_computed} computed in all"
    return [*lines, ("", "\n"), ("italic", facts), ("", "\n"), ("class:help", HELP)]


def line_of(branch: Branch) -> str:
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

    window = Window(FormattedTextControl(lambda: shown(tree), show_cursor=False), wrap_lines=True)
    app: Application[str] = Application(Layout(window), key_bindings=keys, full_screen=True, **terminal)
    return app.run()
