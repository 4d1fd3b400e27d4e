"""Replacing a model's weights while it is open: what was computed with the old ones is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import uuid4

from stretto.engine.engine import Engine
from stretto.errors import InvalidRequest


def replace_weights(engine: Engine, apply: Callable[[], str], stop: bool) -> None:
    """Call `apply`, which replaces the weights and returns their fingerprint, between two requests.

    Those that have begun finish first, or with `stop` they are cancelled; others wait in the queue. Open
    sequences keep their tokens, which are computed again when they are asked for.
    """
    if engine.is_stepping_here:
        engine.check_may_step()
    scheduler, runner = engine.scheduler, engine.runner
    with engine.arrivals.arriving(), engine.lock:
        runner.check_open()
        if scheduler.is_held:
            raise InvalidRequest("the weights are being replaced already; wait until they are")
        _check_sequences(engine)
        scheduler.is_held = True
        for request in scheduler.begun if stop else ():
            request.cancel()
    try:
        while True:
            engine.step_until(lambda: runner.closed or not scheduler.begun)
            with engine.arrivals.arriving(), engine.lock:
                runner.check_open()
                if scheduler.begun:
                    continue
                scheduler.sweep()
                runner.tidy()
                _check_sequences(engine)
                for track in runner.tracks.values():
                    if track.n_placed:
                        runner.release(track)
                runner.prefixes.clear()
                key = 2 * uuid4().hex  # of a mixture of both, where `apply` fails
                try:
                    key = apply()
                finally:
                    runner.weights = key
                    engine.fingerprint = partial(str, key)
                    for track in runner.tracks.values():
                        track.domain = track.domain._replace(weights=key)
                return
    finally:
        scheduler.is_held = False


def _check_sequences(engine: Engine) -> None:
    """Raise if cells could not be computed again from the tokens of sequences."""
    runner = engine.runner
    known = {entry.id for entry in runner.prefixes.entries() if not entry.pins} | runner.borrowed.ids()
    for track in runner.tracks.values():
        known.add(track.id)
        if track.n_placed and not track.running and (track.exact is not None or track.resume is not None):
            raise InvalidRequest(
                f"sequence {track.id} was edited, and its cells cannot be computed again with other weights; "
                "close it first",
                param="weights",
            )
    known |= {number for number, _, _ in runner.orphans}
    if left := [number for number in runner.cells.sequences if number not in known]:
        raise InvalidRequest(
            f"cells of the sequences {left[:8]} were filled by llm.forward or llm.cells, or are pinned; "
            "clear or unpin them first",
            param="weights",
        )
