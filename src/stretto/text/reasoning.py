"""The formats in which models write their reasoning, and which of them a model has.

A format is found by the text of the model's chat template. Its markers are matched as special tokens where
the vocabulary has them as such, and as text otherwise. A new format is a line in `FORMATS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Literal

from stretto.text.detokenizer import Detokenizer
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import TokenType

# Splits generated text into reasoning and answer while it comes, by markers that may be cut anywhere.
#
# A format (reasoning.py) is a small table of states. A state shows its text as reasoning, as answer or not
# at all, and names the markers that lead to other states. Special tokens, which have no text, are lone
# surrogates here: characters that no decoded text can hold.

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


# gpt-oss: messages with headers, `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final…`
_PART = {
    "<|channel|>analysis": "thought",
    "<|channel|>": "header",
    "<|start|>": "header",
    "<|end|>": "header",
}
# A call in the analysis channel is no reasoning.
_HEADER = State("nothing", {**_PART, " to=functions.": "call", "<|message|>": ANSWER})
_HARMONY = {
    PROMPT: _HEADER,
    START: _HEADER,
    "header": _HEADER,
    "thought": State("nothing", {**_PART, " to=functions.": "call", "<|message|>": REASONING}),
    "call": State("nothing", {"<|start|>": "header", "<|end|>": "header", "<|message|>": ANSWER}),
    REASONING: State("reasoning", _PART),
    ANSWER: State("answer", _PART),
}
_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
# Kimi K3: tags of special tokens around every part, `<|open|>think<|sep|>…<|close|>think<|sep|>`
_TAGS = State("nothing", {"<|open|>think<|sep|>": REASONING, "<|open|>response<|sep|>": ANSWER})
_TAGGED = {
    PROMPT: _TAGS,
    START: _TAGS,
    REASONING: State(
        "reasoning",
        {"<|close|>think<|sep|>": START, "<|open|>response<|sep|>": "said", "<|open|>tools<|sep|>": START},
    ),
    ANSWER: State("answer", {"<|close|>response<|sep|>": START, "<|open|>response<|sep|>": ANSWER}),
    "said": State("answer", {"<|close|>response<|sep|>": START}),
}
_RESPONSE = "<|close|>think<|sep|><|open|>response<|sep|>"
# MiniMax M3 closes a block that it did not open where it does not think.
_M3 = block("<mm:think>", "</mm:think>")
_M3[START] = State("undecided", {"<mm:think>": REASONING, "</mm:think>": ANSWER})
_BUDGET = ("<seed:cot_budget_reflect>", "</seed:cot_budget_reflect>")
_COMMAND = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")


@dataclass(frozen=True)
class Format:
    """How a family of models marks its reasoning.

    `signs` are texts that all have to be in the template; `turn` is the special token that starts a turn
    where the turn's own markers cannot tell; `inside` are special tokens that may stand within the reasoning;
    `closing` leads from the reasoning to the answer, where that takes more than a block's end.
    """

    name: str
    signs: tuple[str, ...]
    states: Mapping[str, State]
    turn: str = ""
    inside: tuple[str, ...] = ()
    closing: str = ""

    @property
    def blocks(self) -> list[tuple[str, str]]:
        """The markers that open and close a block of reasoning."""
        opening = [marker for marker, to in self.states[START].markers.items() if to == REASONING]
        closing = [marker for marker, to in self.states[REASONING].markers.items() if to == ANSWER]
        return [(a, b) for a in opening for b in closing]


FORMATS = (
    Format("harmony", ("<|channel|>", "<|message|>", "analysis"), _HARMONY, "<|start|>", closing=_FINAL),
    Format("gemma", ("<|channel>",), block("<|channel>thought", "<channel|>")),
    Format("mistral", ("[THINK]",), block("[THINK]", "[/THINK]")),
    Format("seed", ("<seed:think>",), block("<seed:think>", "</seed:think>"), inside=_BUDGET),
    Format("command", ("<|START_THINKING|>",), block("<|START_THINKING|>", "<|END_THINKING|>", _COMMAND)),
    Format("apertus", ("<|inner_prefix|>",), block("<|inner_prefix|>", "<|inner_suffix|>")),
    Format("kimi k3", ("<|open|>", "<|sep|>", "think"), _TAGGED, closing=_RESPONSE),
    Format(
        "apriel",
        ("[BEGIN FINAL RESPONSE]",),
        block("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", ("[END FINAL RESPONSE]",)),
    ),
    Format("hy", ("<think{}>", ":opensource"), block("<think:opensource>", "</think:opensource>")),
    Format("minimax m3", ("<mm:think>",), _M3),
    Format("kimi", ("◁think▷",), block("◁think▷", "◁/think▷")),
    Format(
        "think, response",
        ("<think>", "<response>"),
        block("<think>", "</think>", ("<response>", "</response>")),
    ),
    Format("think, answer", ("<think>", "<answer>"), block("<think>", "</think>", ("<answer>", "</answer>"))),
    Format("think", ("</think>",), block("<think>", "</think>")),
    Format("think", ("<think>",), block("<think>", "</think>")),
    Format("thought", ("<thought>",), block("<thought>", "</thought>")),
    Format("reasoning", ("<reasoning>",), block("<reasoning>", "</reasoning>")),
)  # fmt: skip

MIN_TAG = 4  # characters of a token that is a tag, and not a part of any text

# Tokens between turns that some vocabularies do not mark as special: `<｜Assistant｜>`, `[INST]`.
_BETWEEN_TURNS = re.compile(r"<[|｜][^<>]*[|｜]>|\[/?[A-Z_]+\]")


class Reasoning:
    """A model's format of reasoning: `find_reasoning` makes it, `splitter` follows one text."""

    def __init__(self, layout: Format, tokenizer: Tokenizer) -> None:
        self.name = layout.name
        self._tokenizer = tokenizer
        markers = {marker for state in layout.states.values() for marker in state.markers}
        specials = tokenizer.specials
        used = sorted(text for text in specials if any(text in marker for marker in markers))
        marks = {text: chr(0xD800 + number) for number, text in enumerate(used)}
        self._marks = {specials[text]: mark for text, mark in marks.items()}
        self._states = {
            name: State(state.shows, {_marked(marker, marks): to for marker, to in state.markers.items()})
            for name, state in layout.states.items()
        }
        self._states[ANSWER] = _reopened(self._states)
        between = tokenizer.vocabulary.of_type(TokenType.USER_DEFINED)
        ends = {token for text, token in between.items() if _BETWEEN_TURNS.fullmatch(text)}
        known = {token for text, token in between.items() if any(text in marker for marker in markers)}
        # The tokens that may start the reasoning, each with those that complete its marker.
        self.openings = self._openings(layout)
        # Whether the token that ends the reasoning can hold nothing of the answer.
        self.closes_by_token = any(
            marker in tokenizer.vocabulary.ids or _is_mark(_marked(marker, marks)[-1])
            for marker in layout.states[REASONING].markers
        )
        closing = layout.closing or next((end for _, end in layout.blocks), "")
        # The tokens that end the reasoning, for a text that has to end it.
        self.closing = tokenizer.encode(closing, special=True, bos=False)
        self._ends = (ends - known) | (set(specials.values()) - self._marks.keys())
        self._ends -= {specials[text] for text in layout.inside if text in specials}
        if layout.turn in specials:
            self._ends.add(specials[layout.turn])

    @property
    def is_guided(self) -> bool:
        """Whether a grammar can start after the reasoning: its markers start and end with tokens."""
        return bool(self.openings) and self.closes_by_token

    def splitter(self, prompt: Sequence[int]) -> Splitter:
        """A splitter for the text after a prompt, which may have opened the block, or closed it."""
        splitter = Splitter(self._states, PROMPT)
        begin = next((i for i in range(len(prompt), 0, -1) if prompt[i - 1] in self._ends), 0)
        detokenizer = self._tokenizer.detokenizer()
        splitter.push("".join([self.spell(token, detokenizer) for token in prompt[begin:]]))
        splitter.begin()
        return splitter

    def spell(self, token: int, detokenizer: Detokenizer) -> str:
        """The text of a token, or its mark if it is a special one that matters."""
        mark = self._marks.get(token)
        return detokenizer.push(token) if mark is None else detokenizer.cut() + mark

    def detokenizer(self, after: int | None) -> Detokenizer:
        """A detokenizer for the text after a token."""
        return self._tokenizer.detokenizer(after=after, exact=True)

    def _openings(self, layout: Format) -> dict[int, list[int]]:
        vocabulary = self._tokenizer.vocabulary
        whole = vocabulary.of_type(TokenType.CONTROL, TokenType.USER_DEFINED)
        found: dict[int, list[int]] = {}
        for marker in layout.states[START].markers:
            if marker in vocabulary.ids:
                found[vocabulary.ids[marker]] = []
                continue
            starts = [text for text in whole if marker.startswith(text) and len(text) >= MIN_TAG]
            start = max(starts, key=len, default=marker)
            rest = marker.removeprefix(start)
            if rest and not any(text in rest for text in whole if len(text) >= MIN_TAG):
                found[whole[start]] = self._tokenizer.encode_inside(rest)
        return found


def _reopened(states: Mapping[str, State]) -> State:
    """The state of an answer; a special token, which no text can forge, may interrupt it with reasoning."""
    answer = states[ANSWER]
    openings = {m: to for m, to in states[START].markers.items() if to == REASONING and _is_mark(m[0])}
    return State(answer.shows, {**openings, **answer.markers})


def _is_mark(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _marked(marker: str, marks: Mapping[str, str]) -> str:
    """A marker with its special tokens as marks; longer ones first."""
    for text in sorted(marks, key=len, reverse=True):
        marker = marker.replace(text, marks[text])
    return marker


def find_format(template: str) -> Format | None:
    """The format that a chat template's text shows, if any."""
    return next((one for one in FORMATS if all(sign in template for sign in one.signs)), None)


def find_reasoning(template: str, tokenizer: Tokenizer) -> Reasoning | None:
    """The format of a model that thinks before it answers; None for others."""
    found = find_format(template)
    return None if found is None else Reasoning(found, tokenizer)
