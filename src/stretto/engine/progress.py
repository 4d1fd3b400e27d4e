"""How far the requests of a call are, for a list of what runs. Reading needs no lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from stretto.engine.request import Request

ProgressState = Literal["waiting", "prompt", "running"]


class Progress(NamedTuple):
    """The state, tokens counted, and the ids of the sequences.

    A call is "waiting" while it has no cells (yet, or again), then its "prompt" is computed, then it is
    "running": tokens come.
    """

    state: ProgressState
    prompt_tokens: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    sequences: tuple[int, ...] = ()


def progress_of(requests: Sequence[Request[Any]], firsts: Sequence[Request[Any]]) -> Progress:
    """How far these requests are, of which the first of each prompt stand for it."""
    running = [request for request in requests if not request.finished]
    tracks = [source.track for request in running for source in request.sources]
    prompts = [request.sources[0].track for request in firsts if request.sources]
    state: ProgressState = "waiting"
    if any(track.n_placed for track in tracks):
        state = "running" if any(request.output.has_tokens for request in running) else "prompt"
    return Progress(
        state=state,
        prompt_tokens=sum(track.n_prompt for track in prompts),
        tokens=sum(request.output.n_noted for request in requests),
        cached_tokens=sum(track.n_cached for track in prompts),
        sequences=tuple(track.id for track in tracks),
    )
