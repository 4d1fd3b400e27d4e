"""A grammar for the answer of a model that thinks first: until the reasoning has ended, any text may come.

`constraint` makes the guide of one text. While the model thinks, only the tokens that would end the text are
forbidden, so that an answer comes. If the prompt leaves open whether the model thinks, it may choose: the
token that opens the reasoning is allowed beside those that start the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stretto.errors import InvalidRequest
from stretto.structured.guide import Guide, Mask, Row
from stretto.text.detokenizer import Detokenizer
from stretto.text.reasoning import Reasoning
from stretto.text.splitter import Splitter


class GuideAfterReasoning:
    """A guide that begins when the reasoning has ended; used in place of a `Guide`."""

    def __init__(self, guide: Guide, reasoning: Reasoning, splitter: Splitter, text: Detokenizer) -> None:
        self._guide = guide
        self._reasoning = reasoning
        self._splitter = splitter
        self._text = text
        self._active = splitter.shows == "answer"
        self._mask: Mask = np.zeros_like(guide.mask)
        self._known = False

    @property
    def done(self) -> bool:
        """Whether nothing can follow."""
        return self._active and self._guide.done

    def begin(self) -> list[int]:
        """The forced tokens at the start of the answer, if it starts at once."""
        return self._guide.begin() if self._active else []

    def skip(self, tokens: list[int]) -> None:
        """Advance by tokens that are there already, before `begin`."""
        for number, token in enumerate(tokens):
            if not self._active and (
                self._splitter.shows != "undecided" or token in self._reasoning.openings
            ):
                self._follow(token)
                self._active = self._splitter.shows == "answer"
            else:
                self._active = True
                self._guide.skip(tokens[number:])
                return

    @property
    def mask(self) -> Mask:
        """uint32[n_vocab / 32]: the allowed tokens, always in the same array."""
        if not self._known:
            if self._active:
                self._mask[:] = self._guide.mask
            elif self._splitter.shows == "undecided":
                self._mask[:] = self._guide.mask
                _set(self._mask, self._reasoning.openings, True)
            else:
                self._mask[:] = 0xFFFFFFFF
                _set(self._mask, self._guide.ends, False)
            self._known = True
        return self._mask

    def masked(self, logits: Row) -> Row:
        """A copy of a row of logits in which the other tokens have −inf."""
        bits = np.unpackbits(self.mask.view(np.uint8), bitorder="little")
        return np.where(bits[: len(logits)] != 0, logits, np.float32(-np.inf)).astype(np.float32, copy=False)

    def push(self, token: int) -> list[int]:
        """Advance by a token; return the forced tokens after it."""
        self._known = False
        if self._active:
            return self._guide.push(token)
        if self._splitter.shows == "undecided":
            if token not in self._reasoning.openings:
                self._active = True
                return self._guide.push(token)
            following = list(self._reasoning.openings[token])
            for one in (token, *following):
                self._follow(one)
            return following
        self._follow(token)
        self._active = self._splitter.shows == "answer"
        return self._guide.begin() if self._active else []

    def n_valid(self, tokens: list[int]) -> int:
        """Length of the longest prefix of `tokens` that is allowed."""
        if self._active:
            return self._guide.n_valid(tokens)
        if self._splitter.shows == "undecided":
            return 1 if tokens[:1] and tokens[0] in self._reasoning.openings else self._guide.n_valid(tokens)
        twin = self.fork()
        for number, token in enumerate(tokens):
            if token in self._guide.ends:
                return number
            twin._follow(token)
            if twin._splitter.shows == "answer":
                return number + 1
        return len(tokens)

    def fork(self) -> GuideAfterReasoning:
        """An independent copy with the same state."""
        return GuideAfterReasoning(
            self._guide.fork(), self._reasoning, self._splitter.fork(), self._text.fork()
        )._with(self._active)

    def _with(self, active: bool) -> GuideAfterReasoning:
        self._active = active
        return self

    def _follow(self, token: int) -> None:
        self._splitter.push(self._reasoning.spell(token, self._text))


class BudgetedReasoning:
    """A guide with a bound on the reasoning: behind so many tokens of it the marker that closes it is forced.

    Around the guide of a grammar, or around None: then any token may come.
    """

    def __init__(
        self,
        guide: Guide | GuideAfterReasoning | None,
        reasoning: Reasoning,
        splitter: Splitter,
        text: Detokenizer,
        left: int,
        n_vocab: int,
    ) -> None:
        self._guide = guide
        self._reasoning = reasoning
        self._splitter = splitter
        self._text = text
        self._left = left  # tokens of reasoning that may come
        self._n_vocab = n_vocab
        self._any: Mask = np.full((n_vocab + 31) // 32, 0xFFFFFFFF, np.uint32)

    @property
    def done(self) -> bool:
        """Whether nothing can follow."""
        return self._guide is not None and self._guide.done

    def begin(self) -> list[int]:
        """The forced tokens at the start."""
        return self._with_close([] if self._guide is None else self._guide.begin())

    def skip(self, tokens: list[int]) -> None:
        """Advance by tokens that are there already, before `begin`."""
        if self._guide is not None:
            self._guide.skip(tokens)
        self._follow(tokens)

    @property
    def mask(self) -> Mask:
        """uint32[n_vocab / 32]: the allowed tokens, always in the same array."""
        return self._any if self._guide is None else self._guide.mask

    def masked(self, logits: Row) -> Row:
        """A copy of a row of logits in which the other tokens have −inf."""
        return logits.copy() if self._guide is None else self._guide.masked(logits)

    def push(self, token: int) -> list[int]:
        """Advance by a token; return the forced tokens after it."""
        self._follow([token])
        return self._with_close([] if self._guide is None else self._guide.push(token))

    def n_valid(self, tokens: list[int]) -> int:
        """Length of the longest prefix of `tokens` that is allowed."""
        n = len(tokens) if self._guide is None else self._guide.n_valid(tokens)
        if self._splitter.shows == "answer":
            return n
        return min(n, self._left if self._splitter.shows == "reasoning" else 1)

    def fork(self) -> BudgetedReasoning:
        """An independent copy with the same state."""
        guide = None if self._guide is None else self._guide.fork()
        splitter, text = self._splitter.fork(), self._text.fork()
        return BudgetedReasoning(guide, self._reasoning, splitter, text, self._left, self._n_vocab)

    def _with_close(self, forced: list[int]) -> list[int]:
        """Forced tokens, and behind them those that close reasoning for which nothing is left."""
        self._follow(forced)
        closing = self._reasoning.closing
        if self._splitter.shows != "reasoning" or self._left > 0 or not closing:
            return forced
        if self._guide is None:
            self._follow(closing)
            return [*forced, *closing]
        if self._guide.n_valid(closing) < len(closing):
            return forced
        for token in closing:  # what the grammar forces behind the last one is the start of the answer
            after = self._guide.push(token)
        self._follow([*closing, *after])
        return [*forced, *closing, *after]

    def _follow(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._left -= self._splitter.shows == "reasoning"
            self._splitter.push(self._reasoning.spell(token, self._text))


Constraint = Guide | GuideAfterReasoning | BudgetedReasoning


def constraint(
    guide: Guide, reasoning: Reasoning | None, prompt: Sequence[int]
) -> Guide | GuideAfterReasoning:
    """The guide of the text after a prompt, which begins after the reasoning if there may be any."""
    if reasoning is None:
        return guide
    splitter = reasoning.splitter(prompt)
    shows = splitter.shows
    if shows == "answer" or (shows == "undecided" and not reasoning.is_guided):
        return guide
    if not reasoning.closes_by_token:
        raise InvalidRequest(
            "grammar: the prompt opens the reasoning, and the vocabulary has no token that closes it; "
            "turn thinking off (template={'enable_thinking': False}), or pass reasoning=False to have the "
            "grammar from the first token on",
            param="grammar",
        )
    return GuideAfterReasoning(guide, reasoning, splitter, reasoning.detokenizer(prompt[-1]))


def with_budget(
    guide: Guide | GuideAfterReasoning | None,
    reasoning: Reasoning,
    prompt: Sequence[int],
    budget: int,
    n_vocab: int,
) -> BudgetedReasoning:
    """A constraint, or none, with at most so many tokens of reasoning behind a prompt."""
    text = reasoning.detokenizer(prompt[-1])
    return BudgetedReasoning(guide, reasoning, reasoning.splitter(prompt), text, budget, n_vocab)


def _set(mask: Mask, tokens: Iterable[int], allowed: bool) -> None:
    for token in tokens:
        bit = np.uint32(1 << (token % 32))
        mask[token // 32] = mask[token // 32] | bit if allowed else mask[token // 32] & ~bit
