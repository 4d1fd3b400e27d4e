"""Splits generated text into reasoning and answer while it comes, by markers that may be cut anywhere.

A format (reasoning.py) is a small table of states. A state shows its text as reasoning, as answer or not at
all, and names the markers that lead to other states. Special tokens, which have no text, are lone surrogates
here: characters that no decoded text can hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Literal

Shows = Literal["answer", "reasoning", "nothing", "undecided"]
Piece = tuple[str, bool]  # text, and whether it is reasoning

PROMPT, START, REASONING, ANSWER = "prompt", "start", "reasoning", "answer"


@dataclass(frozen=True)
class State:
    """The kind of text here, and the markers that end it, each with the name of the next state.

    In an "undecided" state nothing but white space has come; any other text is the answer.
    """

    shows: Shows
    markers: Mapping[str, str] = field(default_factory=dict)


class Splitter:
    """Takes text piece by piece and returns what can be shown, each part told apart.

    Text that may be the start of a marker is held back, and so is white space at the end of reasoning: none
    is left around markers. Where no marker comes, the text is the answer, unchanged.

    >>> splitter = Splitter(block("<think>", "</think>"), START)
    >>> splitter.push("<think>\\nHm"), splitter.push(".\\n</thi"), splitter.push("nk>\\n\\nYes")
    ([('Hm', True)], [('.', True)], [('Yes', False)])
    """

    def __init__(self, states: Mapping[str, State], state: str, keeps_marks: bool = False) -> None:
        self._states = states
        self._keeps_marks = keeps_marks  # special tokens that are no marker here stay in the text
        self._at = state
        self._held = ""  # may become a marker
        self._white = ""  # before more text, or before nothing
        self._hidden = ""  # text of a state that shows nothing, while no marker has come at all
        self._fresh = False  # white space is dropped: a marker stands before it
        self._moved = False  # a marker has come
        self._shown: frozenset[bool] = frozenset()  # the kinds of pieces that were shown
        self._gap = False  # a marker has come since the last one

    @property
    def shows(self) -> Shows:
        """The kind of the text that comes next."""
        return self._states[self._at].shows

    @property
    def is_held(self) -> bool:
        """Whether text was held back that may be a marker, or white space before more text."""
        return bool(self._held or self._white)

    def push(self, text: str) -> list[Piece]:
        """Add text; return what can be shown now."""
        found: list[Piece] = []
        self._held += text
        while True:
            state, markers = self._at, self._states[self._at].markers
            start, marker = _first(self._held, markers)
            self._show(self._held[:start], found)
            self._held = self._held[start:]
            if self._at != state:  # the text before it has decided that this is no marker
                continue
            if marker is None:
                return found
            self._held = self._held[len(marker) :]
            self._move(markers[marker])

    def flush(self) -> list[Piece]:
        """The text that was held back, at the end."""
        found: list[Piece] = []
        held, self._held = self._held, ""
        self._show(held, found)
        rest = self._white if self.shows == "undecided" else self._hidden
        self._hidden = self._white = ""
        if rest:
            found.append((rest, False))
        return found

    def fork(self) -> Splitter:
        """An independent copy with the same state."""
        return copy(self)

    def begin(self) -> None:
        """What came so far was the prompt; the answer starts now."""
        if self._at == PROMPT:
            self._at, self._fresh = START, False
        if self.shows != "reasoning":
            self._fresh = False
        self._held = self._white = self._hidden = ""
        self._moved, self._shown, self._gap = False, frozenset(), False

    def _move(self, state: str) -> None:
        self._at = state
        self._fresh = self._moved = self._gap = True
        self._white = self._hidden = ""

    def _show(self, text: str, found: list[Piece]) -> None:
        """Add text of the present state to what is found."""
        if not text:
            return
        shows = self.shows
        if shows == "nothing":
            self._hidden += "" if self._moved else self._plain(text)
            return
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        text = self._white + self._plain(text)
        self._white = ""
        if shows != "answer":
            kept = text.rstrip()
            self._white = text[len(kept) :]
            if shows == "undecided" and kept:
                self._at, kept, self._white = ANSWER, text, ""
            text = kept
        if not text:
            return
        is_reasoning = shows == "reasoning"
        found.append(("\n\n" + text if self._gap and is_reasoning in self._shown else text, is_reasoning))
        self._gap, self._shown = False, self._shown | {is_reasoning}

    def _plain(self, text: str) -> str:
        """Text without special tokens that were no marker here."""
        if self._keeps_marks or text.isascii():
            return text
        return "".join(c for c in text if not "\ud800" <= c <= "\udfff")


def block(opening: str, closing: str, hidden: Sequence[str] = ()) -> dict[str, State]:
    """The states of a single block of reasoning before the answer; `hidden` markers are left out of it."""
    return {
        PROMPT: State("nothing", {opening: REASONING, closing: ANSWER}),
        START: State("undecided", {opening: REASONING}),
        REASONING: State("reasoning", {closing: ANSWER}),
        ANSWER: State("answer", dict.fromkeys(hidden, ANSWER)),
    }


def _first(text: str, markers: Mapping[str, str]) -> tuple[int, str | None]:
    """The first marker, the longest of those that start together, and where it starts.

    Without one: None, and where a marker may have started at the end of the text.
    """
    whole = [(at, -len(marker), marker) for marker in markers if (at := text.find(marker)) >= 0]
    open_at = min((_overlap(text, marker) for marker in markers), default=len(text))
    if whole:
        at, _, marker = min(whole)
        if at < open_at or (at == open_at and not _may_grow(text[at:], markers)):
            return at, marker
    return open_at, None


def _overlap(text: str, marker: str) -> int:
    """Where the longest suffix of `text` starts that is a proper prefix of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((len(text) - n for n in range(longest, 0, -1) if text.endswith(marker[:n])), len(text))


def _may_grow(text: str, markers: Mapping[str, str]) -> bool:
    return any(len(marker) > len(text) and marker.startswith(text) for marker in markers)
