"""Tokens of several tracks drawn together, by the threads of a backend that has its logits in main memory."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from stretto.backends.base import DrawsRows
from stretto.engine.track import Track
from stretto.errors import InvalidRequest
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import WRONG


def draw_each(
    backend: DrawsRows | None, tracks: list[Track], params: SamplingParams, end_ids: Collection[int]
) -> list[tuple[int, float]] | None:
    """A token of each track, whose logits are there, and its log-probability.

    None without a backend that draws them together, or where the parameters ask for more than it can.
    Where a row has no token to draw, or a track no room for one that does not end its text, nothing is drawn
    at all, and no random number is used up.
    """
    if backend is None or params.penalizes or params.logit_bias:
        return None
    rows = []
    for track in tracks:
        if not isinstance(track.logits, np.ndarray):
            return None
        rows.append(track.logits)
    is_random = params.temperature != 0
    uniforms = [track.random.uniform() if is_random else 0.0 for track in tracks]
    try:
        drawn = backend.draw_rows(rows, params, uniforms)
        for track, (token, _) in zip(tracks, drawn, strict=True):
            if token < 0:
                raise InvalidRequest(WRONG[token])
            if token not in end_ids:
                track.check_room(1)
    except BaseException:
        for track in tracks if is_random else ():
            track.random.skip_to(track.random.draws - 1)
        raise
    return drawn
