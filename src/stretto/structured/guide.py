"""The state of one text in its grammar: the tokens that are allowed next, and forced tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidGrammar, InvalidRequest, param_error
from stretto.structured.unique import UniqueItems
from stretto.text.detokenizer import Detokenizer
from stretto.text.reasoning import Reasoning, Splitter

if TYPE_CHECKING:
    from llguidance import LLMatcher


MAX_STEP_SECONDS = 1.0  # of processor time for one token; the usual are microseconds

_NO_OTHER_ITEM = (
    "the grammar cannot continue: an array with uniqueItems needs another item, and none is left that "
    "differs; lower minItems, or allow more values"
)

Row = NDArray[np.float32]
Mask = NDArray[np.uint32]


class Guide:
    """The state of a grammar after some tokens. `llm.guide(grammar)` makes one for a loop of your own.

        guide = llm.guide({"type": "integer"})
        seq.append(guide.begin())                           # forced tokens at the start, if any
        while not guide.done:
            token = seq.sample(logits=guide.masked(seq.logits))
            if token in llm.tokenizer.end_ids:
                break
            seq.append([token, *guide.push(token)])         # and the forced tokens after it

    `mask` is uint32[n_vocab / 32] with a bit for each token, set where it may come; `done` says that nothing
    can follow, `accepting` that the text could end here.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        n_vocab: int,
        n_matched: int,
        ends: frozenset[int],
        unique: UniqueItems | None = None,
    ) -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab  # of the logits
        self._n_matched = n_matched  # of the matcher: an end token more where the vocabulary has none
        self.ends = ends  # the tokens that end a text
        most = max(n_vocab, n_matched)
        self._mask: Mask = np.zeros((most + 31) // 32, np.uint32)
        self._address = self._mask.ctypes.data
        self._bytes = (n_matched + 31) // 32 * 4
        self._known = False  # the mask is that of the current state
        self._unique = unique  # the items of arrays that must differ
        self.done = False

    def begin(self) -> list[int]:
        """The forced tokens at the start; they count as pushed."""
        return self._forced()

    def skip(self, tokens: list[int]) -> None:
        """Advance by tokens that are there already, before `begin`."""
        begun = thread_time()
        if not self._matcher.consume_tokens(tokens) or not self._differ(tokens):
            raise InvalidRequest(
                "the tokens that the answer begins with do not fit the grammar; take others, or leave it out",
                param="continues",
                value=len(tokens),
            )
        _check_time(begun)

    @property
    def mask(self) -> Mask:
        """uint32[n_vocab / 32]: the allowed tokens, the lowest bit first; read-only."""
        if not self._known:
            begun = thread_time()
            self._matcher.unsafe_compute_mask_ptr(self._address, self._bytes)
            if self._matcher.is_error():
                raise InvalidGrammar(
                    f"the grammar cannot continue: {shorten_error(self._matcher.get_error())}",
                    param="grammar",
                )
            if self._unique is not None:
                self._unique.restrict(self._mask, self._allowed_after)
                if not self._mask.any():
                    raise InvalidGrammar(_NO_OTHER_ITEM, param="grammar")
            _check_time(begun)
            self._known = True
        return self._mask

    @property
    def accepting(self) -> bool:
        """Whether the text fits the grammar as it is."""
        return self._matcher.is_accepting()

    def allowed(self) -> NDArray[np.intp]:
        """The ids of the allowed tokens."""
        bits = np.unpackbits(self.mask.view(np.uint8), bitorder="little")
        return np.flatnonzero(bits[: self._n_vocab])

    def masked(self, logits: Row) -> Row:
        """A copy of a row of logits in which the other tokens have −inf."""
        bits = np.unpackbits(self.mask.view(np.uint8), bitorder="little")
        return np.where(bits[: len(logits)] != 0, logits, np.float32(-np.inf)).astype(np.float32, copy=False)

    def push(self, token: int) -> list[int]:
        """Advance by a token; return the forced tokens after it, which count as pushed too."""
        self._known = False
        begun = thread_time()
        if not self._matcher.consume_token(token) or not self._differ([token]):
            raise InvalidRequest(
                f"token {token} does not fit the grammar here; take one that `mask` allows",
                param="token",
                value=token,
            )
        forced = self._forced()
        _check_time(begun)
        return forced

    def n_valid(self, tokens: list[int]) -> int:
        """Length of the longest prefix of `tokens` that the grammar allows."""
        n_valid = 0 if self.done else self._matcher.validate_tokens(tokens)
        return n_valid if self._unique is None else self._unique.n_valid(tokens[:n_valid])

    def fork(self) -> Guide:
        """An independent copy with the same state."""
        unique = None if self._unique is None else self._unique.fork()
        twin = Guide(self._matcher.deep_copy(), self._n_vocab, self._n_matched, self.ends, unique)
        twin.done = self.done
        return twin

    def _differ(self, tokens: list[int]) -> bool:
        """Whether the items of arrays still differ after these tokens."""
        return self._unique is None or self._unique.push([t for t in tokens if t not in self.ends])

    def _allowed_after(self, tokens: list[int]) -> NDArray[np.intp]:
        """The tokens that the parser allows after some tokens."""
        twin = Guide(self._matcher.deep_copy(), self._n_vocab, self._n_matched, self.ends)
        return twin.allowed() if twin._matcher.consume_tokens(tokens) else np.zeros(0, np.intp)

    def _forced(self) -> list[int]:
        matcher = self._matcher
        forced = matcher.compute_ff_tokens()
        if forced:
            self._known = False
            if not matcher.consume_tokens(forced) or not self._differ(forced):
                if not matcher.is_error():
                    raise InvalidGrammar(_NO_OTHER_ITEM, param="grammar")
                raise InvalidGrammar(
                    f"the grammar cannot continue: {shorten_error(matcher.get_error())}", param="grammar"
                )
        if matcher.is_stopped():
            self.done = True
            if matcher.is_error():
                raise InvalidGrammar(
                    f"the grammar cannot continue: {shorten_error(matcher.get_error())}", param="grammar"
                )
            while forced and forced[-1] in self.ends:  # nothing but the end can follow
                forced.pop()
        return forced


def _check_time(begun: float) -> None:
    """Raise if a step took too much processor time: a slow grammar delays all requests."""
    if (spent := thread_time() - begun) > MAX_STEP_SECONDS:
        raise InvalidGrammar(
            f"the grammar took {spent:.1f} s of processor time for one token; make it less ambiguous, or "
            "smaller",
            param="grammar",
        )


def shorten_error(error: str) -> str:
    """The library's message, without its internal details."""
    text = error.removeprefix("panic: ").split("<backtrace>")[0].split("<non-verbose/>")[0].strip()
    return text if len(text) <= 400 else f"{text[:397]}..."


# A grammar for the answer of a model that thinks first: until the reasoning has ended, any text may come.
#
# `make_constraint` makes the guide of one text. While the model thinks, only the tokens that would end the
# text are forbidden, so that an answer comes. If the prompt leaves open whether the model thinks, it may
# choose: the token that opens the reasoning is allowed beside those that start the answer.


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


def make_constraint(
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
        raise param_error(
            "grammar",
            "the prompt opens the reasoning, and the vocabulary has no token that closes it; turn "
            "thinking off (template={'enable_thinking': False}), or pass reasoning=False to have the "
            "grammar from the first token on",
        )
    return GuideAfterReasoning(guide, reasoning, splitter, reasoning.detokenizer(prompt[-1]))


def limit_reasoning(
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
