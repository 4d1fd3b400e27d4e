"""Hooks read and change the logits of their requests before a token is sampled.

A hook is `hook(logits, tokens)`, for one row. One with a method `batch(logits, rows)` is called once a step
for all requests that share it. The hooks of a request run in list order. An exception in one ends the
requests it was called for, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.backends.base import Row, fetch_rows
from stretto.engine.request import Request
from stretto.errors import InvalidRequest
from stretto.hooks import HookRow

Call = tuple[Request[Any], Row, list[int]]  # a request, a row of logits, the tokens before it


def run_hooks(requests: Sequence[Request[Any]]) -> None:
    """Run the hooks of all requests whose logits have come."""
    fetch_rows(source.track.logits for request in requests for source in request.decoder.sources)
    try:
        for turn in range(max(len(request.decoder.hooks) for request in requests)):
            _run_turn([request for request in requests if turn < len(request.decoder.hooks)], turn)
    except BaseException:  # Ctrl-C, perhaps in the middle of a change: all rows are computed again
        for request in requests:
            if not request.finished:
                request.decoder.forget_logits()
        raise


def _run_turn(requests: Sequence[Request[Any]], turn: int) -> None:
    """Run the hook with this index of each request."""
    together: dict[int, list[Call]] = {}
    for request in requests:
        hook = request.decoder.hooks[turn]
        if request.finished:
            continue
        for row, tokens in request.decoder.hook_rows():
            if hasattr(hook, "batch"):
                together.setdefault(id(hook), []).append((request, row, tokens))
            elif not request.finished:
                try:
                    _check_returned(hook(row, tokens), row)
                    _check_written(request)
                except Exception as error:
                    request.fail(error)
    for calls in together.values():
        _call_batch(calls[0][0].decoder.hooks[turn], calls)


def _call_batch(hook: Any, calls: list[Call]) -> None:
    """Call a hook once for rows of several requests."""
    calls = [call for call in calls if not call[0].finished]
    if not calls:
        return
    rows = [row for _, row, _ in calls]
    together = np.stack(rows) if len(rows) > 1 else rows[0][np.newaxis]
    try:
        called = [HookRow(tokens, request.number) for request, _, tokens in calls]
        _check_returned(hook.batch(together, called), together)
        for request, _, _ in calls:
            _check_written(request)
    except Exception as error:
        for request, _, _ in calls:
            request.fail(error)
        return
    if len(rows) > 1:
        for row, changed in zip(rows, together, strict=True):
            row[:] = changed


def _check_written(request: Request[Any]) -> None:
    """Raise if a hook wrote to its second argument, as one does that expects the logits there."""
    if request.decoder.hooks_wrote():
        raise InvalidRequest(
            "a hook wrote to the tokens, which are for reading; it is called as hook(logits, tokens), "
            "logits first",
            param="hooks",
        )


def _check_returned(returned: object, logits: object) -> None:
    """Raise if a hook returned logits of its own, which nobody would use."""
    if returned is not None and returned is not logits and hasattr(returned, "shape"):
        raise InvalidRequest(
            "a hook returned logits, which are not used; change its first argument instead (logits[:] = …)",
            param="hooks",
        )
