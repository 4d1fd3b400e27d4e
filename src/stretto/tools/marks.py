"""Generated tokens as text in which special tokens are marks, with the reasoning left out."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.text.reasoning import Format
from stretto.text.splitter import ANSWER, REASONING, START, Splitter, State
from stretto.text.tokenizer import Tokenizer
from stretto.tools.format import MARKS, CallFormat, changed, is_mark, texts_of

FIRST = 0xD800  # marks are lone surrogates here, which no decoded text can hold


class Marks:
    """The special tokens that matter to a format of calls and to one of reasoning, each with its mark.

    `layout` and `states` are these formats in terms of the marks.
    """

    def __init__(self, layout: CallFormat, reasoning: Format | None, tokenizer: Tokenizer) -> None:
        self._piece = tokenizer.piece
        found = {ord(c) - MARKS for text in texts_of(layout) for c in text if is_mark(c)}
        markers = [m for state in reasoning.states.values() for m in state.markers] if reasoning else []
        found |= {token for text, token in tokenizer.specials.items() if any(text in m for m in markers)}
        self.of_token = {token: chr(FIRST + number) for number, token in enumerate(sorted(found))}
        self._spelled = {tokenizer.piece(token): mark for token, mark in self.of_token.items()}
        self._tokens = {mark: token for token, mark in self.of_token.items()}
        self.layout = changed(layout, self._from_planes)
        self.states: Mapping[str, State] = {
            name: State(state.shows, {self.marked(marker): to for marker, to in state.markers.items()})
            for name, state in (reasoning.states.items() if reasoning else ())
        }

    @property
    def openings(self) -> list[str]:
        """The markers that open reasoning and are text."""
        found = self.states[START].markers if self.states else {}
        return [self.plain(marker) for marker, to in found.items() if to == REASONING]

    def marked(self, text: str) -> str:
        """A text with its special tokens as marks; of those that overlap, the longer."""
        for special in sorted((one for one in self._spelled if one in text), key=len, reverse=True):
            text = text.replace(special, self._spelled[special])
        return text

    def spelled(self, text: str) -> str:
        """A text with its marks spelled out."""
        if text.isascii():
            return text
        return "".join(self._piece(self._tokens[c]) if c in self._tokens else c for c in text)

    def plain(self, text: str) -> str:
        """A text without its marks."""
        return text if text.isascii() else "".join(c for c in text if c not in self._tokens)

    def _from_planes(self, text: str) -> str:
        return "".join(self.of_token[ord(c) - MARKS] if is_mark(c) else c for c in text)


class MarkedText:
    """Spells the tokens of one answer.

    Reasoning in blocks (`<think>`) is cut out before calls are looked for: those in it are none. Where
    reasoning, answers and calls are messages with headers, which hold the calls' names, the headers are cut
    out of the text around calls (`shown`).
    """

    def __init__(self, marks: Marks, tokenizer: Tokenizer, has_blocks: bool) -> None:
        self.marks = marks
        self._detokenizer = tokenizer.detokenizer()
        states = marks.states
        self._blocks = Splitter(states, START, keeps_marks=True) if states and has_blocks else None
        self._headers = Splitter(states, ANSWER, keeps_marks=True) if states and not has_blocks else None

    @property
    def is_held(self) -> bool:
        """Whether text was taken that may yet be a marker of reasoning."""
        return self._blocks is not None and self._blocks.is_held

    def push(self, token: int) -> str:
        """The marked text of a token, without reasoning."""
        mark = self.marks.of_token.get(token)
        if mark is not None:
            return self.filter(self._detokenizer.cut() + mark)
        return self.filter(self._detokenizer.push(token))

    def answer(self) -> None:
        """The answer begins: what came before, if anything, was reasoning."""
        if self._blocks is not None:
            self._blocks = Splitter(self.marks.states, ANSWER, keeps_marks=True)

    def end(self) -> str:
        """The rest of the marked text."""
        rest = self.filter(self._detokenizer.flush())
        return rest if self._blocks is None else rest + _answer(self._blocks.flush())

    def filter(self, text: str) -> str:
        """Marked text without the reasoning."""
        return text if self._blocks is None else _answer(self._blocks.push(text))

    def shown(self, text: str) -> str:
        """The part of a marked text that is shown: no special tokens, and no headers."""
        return self.marks.plain(text if self._headers is None else _answer(self._headers.push(text)))

    def shown_end(self) -> str:
        """The rest of what is shown."""
        return "" if self._headers is None else self.marks.plain(_answer(self._headers.flush()))


def _answer(pieces: list[tuple[str, bool]]) -> str:
    return "".join(text for text, is_reasoning in pieces if not is_reasoning)
