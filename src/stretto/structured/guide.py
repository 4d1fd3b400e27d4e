"""The state of one text in its grammar: the tokens that are allowed next, and forced tokens."""

from __future__ import annotations

from time import thread_time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidGrammar, InvalidRequest
from stretto.structured.unique import UniqueItems

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
                    f"the grammar cannot continue: {brief(self._matcher.get_error())}", param="grammar"
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
                    f"the grammar cannot continue: {brief(matcher.get_error())}", param="grammar"
                )
        if matcher.is_stopped():
            self.done = True
            if matcher.is_error():
                raise InvalidGrammar(
                    f"the grammar cannot continue: {brief(matcher.get_error())}", param="grammar"
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


def brief(error: str) -> str:
    """The library's message, without its internal details."""
    text = error.removeprefix("panic: ").split("<backtrace>")[0].split("<non-verbose/>")[0].strip()
    return text if len(text) <= 400 else f"{text[:397]}..."
