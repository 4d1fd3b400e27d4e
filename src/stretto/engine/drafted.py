"""Requests whose tokens are guessed before they are sampled: several are checked in one forward pass.

The sampled tokens are those of a plain request, with the same random numbers: each row of the pass has the
logits that a step of its own would have given, bit for bit where the backend promises that.
"""

from __future__ import annotations

from collections.abc import Iterable

from stretto.backends.base import Batch
from stretto.drafts.base import Appetite
from stretto.engine.engine import Engine
from stretto.engine.params import RequestParams
from stretto.engine.request import Request
from stretto.engine.sequence import Rows, Sequence
from stretto.engine.types import FinishReason
from stretto.sampling.rng import RandomStream

WIDEST = 16  # rows that guesses may add to a pass, for all who guess together


class DraftedSequence(Sequence):
    """A sequence that can have a guess computed behind its last token."""

    def __init__(self, engine: Engine, tokens: Iterable[int], random: RandomStream) -> None:
        self.guess: list[int] = []
        self.rows: Rows | None = None  # of the last token and the guess, once they are computed
        super().__init__(engine, tokens, random)

    @property
    def n_pending(self) -> int:
        """How many tokens have no cell yet, guesses among them."""
        return super().n_pending + len(self.guess) if self.rows is None else 0

    @property
    def position(self) -> int:
        """The position of the next token; a guess is none yet."""
        return self._start + super().n_pending

    @property
    def at_end(self) -> bool:
        """With a guess it takes the long way."""
        return not self.guess and super().at_end

    def offer(self, guess: list[int]) -> None:
        """Have a guess computed with the last token."""
        self.guess = guess
        self.at_once = 1 + len(guess)

    def settle_guess(self) -> None:
        """The guess has been looked at: what was not adopted is rolled back."""
        if self.rows is not None:
            self._engine.cells.remove(self.id, self.position - 1)  # the last token was sampled, not guessed
        self._no_guess()

    def lighten(self) -> bool:
        """A guess that has not been computed can be given up."""
        given_up = bool(self.guess) and self.rows is None
        if given_up:
            self._no_guess()
        return given_up

    def release(self) -> None:
        """Give the cells up and keep the tokens."""
        super().release()
        self._no_guess()

    def enter(self, batch: Batch, most: int) -> int:
        """Put the last token and the guess into a batch, or as much of the prompt as is wanted."""
        if not self.guess:
            return super().enter(batch, most)
        for position, token in enumerate((self._tokens[-1], *self.guess), self._start):
            batch.add(token, position, (self.id,), logits=True)
        return self.at_once

    def leave(self, rows: Rows) -> None:
        """What `enter` put into a batch has been computed."""
        if self.guess:
            self.rows = rows
        super().leave(rows)

    def _no_guess(self) -> None:
        self.guess, self.rows, self.at_once = [], None, 1


class DraftedRequest(Request):
    """A request with `draft=`."""

    sequence_type = DraftedSequence
    sequence: DraftedSequence

    def __init__(
        self,
        engine: Engine,
        prompt: list[int],
        params: RequestParams,
        index: int = 0,
        seed: int | None = None,
    ) -> None:
        assert params.draft is not None
        super().__init__(engine, prompt, params, index, seed)
        self._guesser = params.draft.begin(engine.tokenizer)
        self._appetite = Appetite(params.draft.most)

    def _advance(self) -> None:
        if self.sequence.rows is None:
            super()._advance()
        else:
            self._verify(self.sequence.rows, self.sequence.guess)
        if not self.finished:
            self._propose()

    def _verify(self, rows: Rows, guess: list[int]) -> None:
        """Sample from each row, until a token is not the one that was guessed."""
        n_right = 0
        for row, guessed in zip(rows, (*guess, None), strict=True):
            right = self._take(row, guessed)
            if self.finished:
                break
            if not right:
                self.sequence.settle_guess()
                break
            n_right += 1
        self._appetite.learn(len(guess), n_right)
        self._engine.metrics.guessed_tokens += len(guess)
        self._engine.metrics.guessed_right += n_right

    def _propose(self) -> None:
        """Guess what comes after the token that was sampled last."""
        most = min(self._appetite.next(), self._room())
        if most > 0:
            guess = self._engine.check_tokens(self._guesser.propose(self.sequence.history, most))
            if guess:
                self.sequence.offer(guess[:most])

    def _room(self) -> int:
        """How many tokens can be guessed without going beyond a limit."""
        engine, most = self._engine, self.params.max_tokens
        room = min(
            engine.context_length - self.sequence.position - 1,
            engine.scheduler.limits.max_tokens_per_step - 1,
            WIDEST // max(1, len(engine.scheduler.running)),
        )
        return room if most is None else min(room, most - len(self.tokens) - 1)

    def _end(self, reason: FinishReason, why: str | int | None) -> None:
        super()._end(reason, why)
        self._guesser.close()

    def fail(self, error: BaseException) -> None:
        """End it with an exception."""
        super().fail(error)
        self._guesser.close()
