"""A request whose text fits a grammar.

The mask of the grammar is applied last, in the native sampler: hooks, penalties and bias change the logits,
and what the grammar forbids stays forbidden. Tokens that have to come are appended without asking the model:
those before the first sampled one are computed with the prompt, and those behind a sampled one together with
it, in one forward pass.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from stretto.engine.ahead import run_ahead
from stretto.engine.params import RequestParams
from stretto.engine.request import Request
from stretto.engine.sequence import Row, Sequence
from stretto.engine.types import Logprob
from stretto.structured import Compiled

if TYPE_CHECKING:
    from stretto.engine.engine import Engine

AT_ONCE = 8  # pending tokens that still count as decoding; more are paced like a prompt


class GuidedRequest(Request):
    """A request with a guide, which says after each token what may come and what has to."""

    def __init__(
        self,
        engine: Engine,
        prompt: list[int],
        params: RequestParams,
        index: int = 0,
        seed: int | None = None,
        sequence: Sequence | None = None,
    ) -> None:
        super().__init__(engine, prompt, params, index, seed, sequence)
        assert isinstance(params.grammar, Compiled)
        self.guide = params.grammar.guide()
        self._detokenizer = engine.tokenizer.detokenizer(exact=True)
        forced = self.guide.begin()
        room = engine.context_length - len(prompt) - 1
        self._opening = forced[:room]  # tokens of the answer that are computed with the prompt
        self._owed = forced[room:]  # tokens that have to come and are not in the sequence yet
        self.sequence.append(self._opening)

    def _advance(self) -> None:
        if self._begin():
            return
        if self._timed_out():
            self.finish("timeout")
            return
        self._take(self.sequence.logits)
        self._pay()

    def _take(self, row: Row, guessed: int | None = None) -> bool:
        """Sample a token that the grammar allows."""
        params = self.params
        begun = time.perf_counter()
        token = self.sequence.choose(row, params.sampling, self.guide.mask)
        logprob: float | None = None
        top: tuple[Logprob, ...] = ()
        if params.logprobs or params.scored:
            logprob, top = self._measure(token, row)
        if token not in self._end_ids:
            self._owed = self.guide.push(token)
        self._engine.metrics.sampling += time.perf_counter() - begun
        self.note_end(True)
        self._accept(token, logprob, top)
        return token == guessed

    def _advance_fused(self) -> None:
        if not self._begin():
            super()._advance_fused()
            self._pay()

    def _run_ahead(self, n: int, last: bool) -> list[int]:
        params, mask = self.params, self.guide.mask
        return run_ahead(
            self.sequence, n, params.sampling, self._end_ids, last, params.native_hooks, mask, self._follow
        )

    def note_end(self, last: bool) -> None:
        """The text is complete with the last token, if the grammar allows no more and nothing has to come."""
        self.complete = last and self.guide.done and not self._owed

    def _follow(self, token: int, room: int) -> tuple[list[int], bool]:
        """For the fused loop: what follows a token, and whether anything comes then."""
        forced = self.guide.push(token)
        self._owed = forced[room:]
        if not self.guide.done and not self._owed:
            self.guide.mask  # noqa: B018 - worked out in place
            return forced, True
        return forced[:room], not self.guide.done

    def _begin(self) -> bool:
        """Hand out the tokens that were computed with the prompt; say whether something ended there."""
        if self._opening:
            opening, self._opening = self._opening, []
            self.sequence.retract(len(opening))
            for i, token in enumerate(opening, 1):
                self.note_end(i == len(opening))
                self._accept_forced(token, placed=True)
                if self.finished:
                    return True
        if self._owed:
            self._pay()
            return True
        return False

    def _pay(self) -> None:
        """Append the tokens that have to come; the next pass computes them together."""
        if self.finished:
            return
        owed, self._owed = self._owed, []
        for i, token in enumerate(owed, 1):
            self.note_end(i == len(owed))
            self._accept_forced(token)
            if self.finished:
                return
        n = self.sequence.n_pending
        self.sequence.at_once = n if 1 <= n <= AT_ONCE else 1

    def _accept_forced(self, token: int, placed: bool = False) -> None:
        """A token that has to come is certain, and says nothing of how good the text is."""
        logprob, top = (0.0, (Logprob(token, 0.0),)) if self.params.logprobs else (None, ())
        self.n_sampled -= 1
        self._accept(token, logprob, top, placed)

    def _measure(self, token: int, row: Row) -> tuple[float | None, tuple[Logprob, ...]]:
        """Among the tokens that the grammar allows."""
        logprob, top = super()._measure(token, self.guide.masked(row))
        return logprob, tuple(entry for entry in top if entry.logprob > -np.inf)
