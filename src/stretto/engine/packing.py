"""Requests that score many continuations of one text, packed into as few passes as they fit into."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.engine.adapters import adapter_parts, check_same
from stretto.engine.decoders.packed import PackedPass
from stretto.engine.engine import Engine
from stretto.engine.request import Request
from stretto.engine.sequence import Sequence, track_in
from stretto.errors import ContextOverflow, InvalidRequest, Unsupported
from stretto.sampling.rng import RandomStream


def packed_request(
    engine: Engine,
    text: list[int] | Sequence,
    continuations: list[list[int]],
    adapter: str | Mapping[str, float] | None = None,
) -> Request[PackedPass]:
    """Of each continuation the log-probability of its tokens: a list of float32[n].

    The text is a prompt, which stays cached, or a sequence, which is forked and stays as it is.
    """
    runner = engine.runner
    runner.backend.capabilities.require("fork", runner.backend.name)
    mix = runner.adapters.mix(adapter_parts(adapter))
    for number, tokens in enumerate(continuations):
        if not tokens:
            raise InvalidRequest(
                f"continuation {number} has no tokens; give at least one", param="continuations"
            )
        if any(type(token) is not int for token in tokens):
            raise Unsupported("images in continuations are not scored; put them into the prompt")
    longest = max(map(len, continuations), default=0)
    if isinstance(text, Sequence):
        with engine.lock:
            track = track_in(engine, text)
            _check_room(engine, track.position, longest)
            if mix is not None:
                check_same(track, mix)
            text.logits  # noqa: B018  # computed now, so that there are cells to share
            track = runner.fork(track)
    else:
        _check_room(engine, len(text), longest)
        track = runner.new_track(text, RandomStream(0))
        track.adapt(mix)
    is_prompt = not isinstance(text, Sequence)
    return Request(PackedPass(runner, track, continuations, park=is_prompt), runner.metrics)


def _check_room(engine: Engine, n: int, longest: int) -> None:
    """Raise unless a text of n tokens with its longest continuation fits into the context."""
    if not n:
        raise InvalidRequest("the prompt is empty; give at least one token", param="prompt")
    limit = engine.runner.context_length
    if n + longest > limit:
        raise ContextOverflow(
            f"a text of {n} tokens with a continuation of {longest} does not fit into a context of {limit}; "
            "shorten it, or load the model with more cells",
            n_tokens=n + longest,
            limit=limit,
            param="continuations",
        )
