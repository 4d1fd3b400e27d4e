"""Hooks see and change the logits of their requests before a token is sampled.

A hook is `hook(logits, tokens)`, for one row. One with a method `batch(logits, rows)` is called once a step
for all requests that share it. The hooks of a request run in the order they were given. What goes wrong in
one ends the requests it was called for, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from stretto.engine.params import Hook
from stretto.engine.request import Request
from stretto.engine.sequence import Sequence
from stretto.sampling.hooks import HookRow


def run_hooks(requests: Seq[Request]) -> None:
    """Run the hooks of all requests whose logits have come."""
    most = max([len(request.params.hooks) for request in requests], default=0)
    for turn in range(most):
        batched: dict[int, list[tuple[Request, Sequence]]] = {}
        for request in requests:
            if turn >= len(request.params.hooks):
                continue
            hook = request.params.hooks[turn]
            for sequence in request.sequences:
                if hasattr(hook, "batch"):
                    batched.setdefault(id(hook), []).append((request, sequence))
                else:
                    _call_one(request, sequence, hook)
        for rows in batched.values():
            _call_together(rows, rows[0][0].params.hooks[turn])


def _call_one(request: Request, sequence: Sequence, hook: Hook) -> None:
    if request.finished:
        return
    request.busy = True  # a hook may use the engine, and so step it
    try:
        hook(sequence.logits, sequence.history)
    except Exception as error:
        request.fail(error)
    finally:
        request.busy = False


def _call_together(rows: list[tuple[Request, Sequence]], hook: Any) -> None:
    rows = [(request, sequence) for request, sequence in rows if not request.finished]
    for request, _ in rows:
        request.busy = True
    try:
        logits = [sequence.logits for _, sequence in rows]
        together = np.stack(logits) if len(logits) > 1 else logits[0][np.newaxis]
        hook.batch(together, [HookRow(sequence.history, request.number) for request, sequence in rows])
        if len(logits) > 1:
            for row, changed in zip(logits, together, strict=True):
                row[:] = changed
    except Exception as error:
        for request, _ in rows:
            request.fail(error)
    finally:
        for request, _ in rows:
            request.busy = False
