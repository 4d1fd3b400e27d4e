"""The reasoning of one text, told apart from its answer while tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from stretto.text.detokenizer import Detokenizer
from stretto.text.reasoning import Piece, Reasoning


class Thoughts:
    """The reasoning so far: its `text`, its tokens, and where the answer starts among all tokens.

    `push` returns a token's part of the answer and leaves its part of the reasoning in `fresh`; `inside` says
    whether the token belongs to the reasoning or to the markers around it.
    """

    def __init__(self, reasoning: Reasoning, prompt: Sequence[int]) -> None:
        self._splitter = reasoning.splitter(prompt)
        self._reasoning = reasoning
        self._texts: list[str] = []
        self._n_pushed = 0
        self.n_tokens = 0
        self.answer_start = 0
        self.fresh = ""
        self.inside = False

    @property
    def text(self) -> str:
        """The reasoning."""
        return "".join(self._texts)

    def push(self, token: int, detokenizer: Detokenizer) -> str:
        """Add a token; return what of its text is part of the answer."""
        splitter = self._splitter
        before = splitter.shows
        answer = self._sort(splitter.push(self._reasoning.spell(token, detokenizer)))
        after = splitter.shows
        self._n_pushed += 1
        self.inside = not answer and not {before, after}.isdisjoint(("reasoning", "nothing"))
        self.n_tokens += self.inside
        if "reasoning" in (before, after):
            self.answer_start = self._n_pushed
        return answer

    def flush(self, text: str) -> str:
        """Add the last text, and return all of the answer that was held back."""
        return self._sort([*self._splitter.push(text), *self._splitter.flush()])

    def begin_here(self) -> None:
        """Count from here on; an answer that has started starts at a negative place."""
        self.answer_start -= self._n_pushed
        self._texts, self._n_pushed, self.n_tokens, self.fresh = [], 0, 0, ""

    def take(self) -> str:
        """The reasoning that has not been given out."""
        fresh, self.fresh = self.fresh, ""
        return fresh

    def fork(self) -> Thoughts:
        """An independent copy with the same state."""
        twin = copy(self)
        twin._splitter, twin._texts = self._splitter.fork(), list(self._texts)
        return twin

    def _sort(self, pieces: list[Piece]) -> str:
        """Keep the reasoning, return the answer."""
        if not pieces:
            return ""
        new = "".join(text for text, is_reasoning in pieces if is_reasoning)
        if new:
            self.fresh += new
            self._texts.append(new)
        return "".join(text for text, is_reasoning in pieces if not is_reasoning)
