"""What the engine asks of a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from stretto.backends.base import Row
from stretto.engine.output import Ending, Output
from stretto.engine.params import Hook
from stretto.engine.track import Source, Track
from stretto.hooks import HookRow


class Decoder(Protocol):
    """Turns rows of logits into what a request gives out.

    The engine computes the pending tokens of `sources`; when all of them have logits, `advance` takes from
    them and leaves its sources ready for the next pass. `output.ending` is set when the text has ended.
    """

    hooks: tuple[Hook, ...]
    can_preempt: bool  # its cells can be given up and be computed again
    reuses_prefix: bool  # its tracks may start from the prefix cache
    hidden: bool  # it wants final hidden states instead of logits
    number: int  # of its request, by which hooks tell rows apart

    @property
    def output(self) -> Output[Any]:
        """What it gives out."""
        ...

    @property
    def sources(self) -> Sequence[Source]:
        """The sources that are computed for it."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether all its tokens could be computed again from scratch: nothing was edited."""
        ...

    def hook_rows(self) -> list[tuple[Row, list[int]]]:
        """The rows that its hooks see, each with the tokens before it."""
        ...

    def hooks_wrote(self) -> bool:
        """Whether a hook wrote to the tokens that it was shown."""
        ...

    def advance(self, n_running: int) -> None:
        """Take the next tokens from the logits; `n_running` requests share the passes."""
        ...

    def result(self) -> Any:
        """What the caller gets, once it has ended."""
        ...

    def end_early(self, ending: Ending) -> None:
        """End from outside; the output so far stays."""
        ...

    def forget_logits(self) -> None:
        """Drop logits that an interrupted hook may have changed; they are computed again."""
        ...

    def drop_draft(self) -> bool:
        """Give up speculative tokens that have not been computed; say whether there were any."""
        ...

    def preempt(self) -> None:
        """Give all cells up and keep the tokens."""
        ...

    def close(self) -> None:
        """Close all tracks."""
        ...


class OneTrack:
    """The parts that decoders of one track have in common."""

    can_preempt = True
    reuses_prefix = True
    hidden = False
    number = 0

    def __init__(self, track: Track) -> None:
        self.track = track
        self.sources: Sequence[Source] = (track,)

    @property
    def is_exact(self) -> bool:
        """Whether nothing was edited."""
        return self.track.exact is None

    def hook_rows(self) -> list[tuple[Row, list[int]]]:
        """The logits of the track."""
        return [(self.track.host_logits(), self.track.shown.show(self.track.tokens))]

    def hooks_wrote(self) -> bool:
        """Whether the track's tokens are not those that hooks have."""
        return self.track.shown.differs(self.track.tokens)

    def forget_logits(self) -> None:
        """Drop the logits; they are computed again."""
        self.track.forget_logits()

    def drop_draft(self) -> bool:
        """Give up a draft that has not been computed."""
        return self.track.drop_draft()


def call_hook(hook: Any, row: Row, tokens: list[int], number: int) -> None:
    """Call a hook for one row, in the way that it prefers."""
    if hasattr(hook, "batch"):
        hook.batch(row[np.newaxis], [HookRow(tokens, number)])
    else:
        hook(row, tokens)
