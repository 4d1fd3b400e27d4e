"""A hook for classifier-free guidance: steers away from the answer to another prompt."""

from __future__ import annotations

from math import log
from typing import Protocol

import numpy as np

from stretto.errors import InvalidRequest
from stretto.sampling.hooks.row import Row
from stretto.sampling.params import check_number


def log_sum(logits: Row) -> float:
    """The logarithm of the sum of exponentials: the normaliser of logits."""
    highest = float(logits.max())
    if highest == -np.inf:
        return 0.0  # all tokens are excluded; the sampler raises
    return highest + log(np.exp(logits - highest).sum(dtype=np.float64))


class Guide(Protocol):
    """The part of `Sequence` that guidance needs."""

    @property
    def logits(self) -> Row:
        """For its next token."""
        ...

    @property
    def position(self) -> int:
        """Where its next token stands."""
        ...

    def append(self, what: list[int], /) -> None:
        """Add tokens."""
        ...

    def truncate(self, n: int, /) -> None:
        """Forget everything from a position on."""
        ...


class Guidance:
    """Classifier-free guidance: log-probabilities become negative + scale × (positive − negative).

        with llm.sequence("Be rude.") as rude:
            llm.generate("Be polite.", hooks=[Guidance(rude, scale=1.5)])

    The positive ones are those of the request, the negative ones those of `sequence`, which gets every token
    of the answer too. With `scale` 1 nothing changes, above 1 the difference is amplified, at 0 only the
    other prompt counts. Tokens that hooks before it excluded stay excluded.

    An object serves one request, since its sequence follows that request's tokens. It costs a forward pass
    and a cell a token; the sequence is the caller's to close.
    """

    def __init__(self, sequence: Guide, scale: float) -> None:
        if not hasattr(type(sequence), "logits") or not hasattr(type(sequence), "append"):
            raise InvalidRequest(
                f"sequence must be a Sequence, as llm.sequence makes it, not {sequence!r}",
                param="sequence",
                value=sequence,
            )
        check_number("scale", scale, 0.0, 100.0)
        self.sequence = sequence
        self.scale = float(scale)
        self._tokens: list[int] | None = None  # the request's tokens at the last call
        self._n_prompt = 0  # of these, how many there were at the first

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Combine the row with that of the other sequence."""
        self._keep_up(tokens)
        other = self.sequence.logits
        if other.shape != logits.shape:
            raise InvalidRequest(
                f"sequence is of a model with {len(other)} tokens, and the request's has {len(logits)}",
                param="sequence",
            )
        positive, negative = logits - log_sum(logits), other - log_sum(other)
        with np.errstate(
            invalid="ignore", over="ignore"
        ):  # where one is −inf, the request's own is taken below
            combined = negative + self.scale * (positive - negative)
        both = (positive > -np.inf) & (negative > -np.inf)
        np.copyto(logits, np.where(both, combined, positive))

    def _keep_up(self, tokens: list[int]) -> None:
        """Append the new tokens to the other sequence; a parallel run may also change its last ones."""
        if self._tokens is None:
            self._tokens, self._n_prompt = list(tokens), len(tokens)
            return
        n = n_last = len(self._tokens)
        if tokens[:n] != self._tokens:
            n = next((i for i, (a, b) in enumerate(zip(tokens, self._tokens, strict=False)) if a != b), 0)
            if n < self._n_prompt or len(tokens) < n_last:
                raise InvalidRequest(
                    "a Guidance serves one request; make one for each, with its own sequence"
                )
            self.sequence.truncate(self.sequence.position - (n_last - n))
        if len(tokens) > n:
            self.sequence.append(tokens[n:])
            self._tokens[n:] = tokens[n:]

    def __repr__(self) -> str:
        return f"Guidance({self.sequence!r}, scale={self.scale:g})"
