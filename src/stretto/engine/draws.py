"""Tokens of several tracks drawn together, by the threads of a backend that has its logits in main memory."""

from __future__ import annotations

import numpy as np

from stretto.backends.base import DrawsRows
from stretto.engine.track import Track
from stretto.errors import InvalidRequest
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import WRONG


def draw_each(
    backend: DrawsRows | None, tracks: list[Track], params: SamplingParams
) -> list[tuple[int, float]] | None:
    """A token of each track, whose logits are there, and its log-probability.

    None without a backend that draws them together, or where the parameters ask for more than it can.
    Where a row has no token to draw nothing is drawn at all, and no random number is used up.
    """
    if backend is None or params.penalizes or params.logit_bias:
        return None
    rows = []
    for track in tracks:
        if not isinstance(track.logits, np.ndarray):
            return None
        rows.append(track.logits)
    if params.temperature == 0:
        return _checked(backend.draw_rows(rows, params, [0.0] * len(rows)))
    uniforms = [track.random.uniform() for track in tracks]
    try:
        return _checked(backend.draw_rows(rows, params, uniforms))
    except BaseException:
        for track in tracks:
            track.random.skip_to(track.random.draws - 1)
        raise


def _checked(drawn: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """What was drawn; raises if there is a code for what is wrong with a row."""
    for token, _ in drawn:
        if token < 0:
            raise InvalidRequest(WRONG[token])
    return drawn
