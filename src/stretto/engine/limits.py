"""How much an engine takes on at a time, and the pace of prefill that it learns."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace

from stretto.errors import wrong_value
from stretto.options.names import refuse_unknown_fields
from stretto.sampling.params import check_integer, check_number

PASS_TOKENS = 512  # in a forward pass, where a backend does not say how many it wants
HELD_SEQUENCES = 16  # of callers, siblings and beams, beyond the running requests


@refuse_unknown_fields
@dataclass(frozen=True)
class Limits:
    """How much an engine takes on.

    - `max_running`: texts in one forward pass; a request of more (`n`, `best_of`) starts when no other runs.
      A smaller call starts beside larger ones that fill the pass: then their texts take turns
    - `max_queue`: requests that wait, a call with many prompts or `n` being one; one that finds so many is
      refused with `QueueFull`
    - `max_tokens_per_step`: tokens in a forward pass, at most; None: as many as the backend does well with
    - `max_step_ms`: how long a pass may take while requests decode, about; prompts are cut to fit
    - `checkpoint_bytes`: of states of recurrent layers that are kept to be continued from again
    """

    max_running: int = 64
    max_queue: int = 1024
    max_tokens_per_step: int | None = None
    max_step_ms: float = 45.0
    checkpoint_bytes: int = 512 << 20

    def __post_init__(self) -> None:
        check_integer("max_running", self.max_running, 1, 1 << 16)
        check_integer("max_queue", self.max_queue, 0, 1 << 24)
        if self.max_tokens_per_step is not None:
            check_integer("max_tokens_per_step", self.max_tokens_per_step, 1, 1 << 16)
        check_number("max_step_ms", self.max_step_ms, 0.0, 1e9, open_low=True)
        check_integer("checkpoint_bytes", self.checkpoint_bytes, 0, 1 << 50)

    @classmethod
    def of(cls, given: object) -> Limits:
        """The limits that a caller gave; the usual ones for None."""
        if given is not None and not isinstance(given, Limits):
            raise wrong_value("limits", given, "a stretto.Limits, as Limits(max_running=8)")
        return given or Limits()

    def on(self, backend: object) -> Limits:
        """The limits of an engine with that backend."""
        if self.max_tokens_per_step is not None:
            return self
        return replace(self, max_tokens_per_step=getattr(backend, "pass_tokens", PASS_TOKENS))

    @property
    def tokens_per_step(self) -> int:
        """Tokens in a forward pass, at most."""
        return self.max_tokens_per_step or PASS_TOKENS

    @property
    def max_states(self) -> int:
        """Sequences that can have a recurrent state at the same time: requests, and some of callers."""
        return self.max_running + HELD_SEQUENCES


@dataclass(frozen=True)
class Share:
    """The owner of requests, its weight beside other owners, and the cells that its requests may ask for."""

    owner: str = ""
    weight: float = 1.0
    max_cells: int | None = None


COMMON_SHARE = Share()
CURRENT_SHARE: ContextVar[Share] = ContextVar("share", default=COMMON_SHARE)  # of requests that are made now


class Pace:
    """The cost of a prompt's token here, learned from the steps so far."""

    MIN_TOKENS = 8  # of a piece; fewer are not worth a pass

    def __init__(self) -> None:
        self._seconds = 0.0  # for one token; 0: not known yet

    def learn(self, n_tokens: int, seconds: float) -> None:
        """Note that a pass over so many tokens took so long."""
        if n_tokens >= self.MIN_TOKENS:
            now = seconds / n_tokens
            self._seconds = now if not self._seconds else 0.5 * (self._seconds + now)

    def tokens_in(self, milliseconds: float) -> int:
        """How many tokens of prompts fit into such a time."""
        if not self._seconds:
            return 8 * self.MIN_TOKENS
        return max(self.MIN_TOKENS, int(1e-3 * milliseconds / self._seconds))
