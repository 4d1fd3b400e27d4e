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
                if not _next(request, sequence, turn):
                    continue
                if hasattr(hook, "batch"):
                    batched.setdefault(id(hook), []).append((request, sequence))
                else:
                    _call_one(request, sequence, hook)
        for rows in batched.values():
            _call_together(rows, rows[0][0].params.hooks[turn], turn)


def _next(request: Request, sequence: Sequence, turn: int) -> bool:
    """Whether it is this hook's turn. A hook may step the engine, and so others may have gone on already."""
    return not request.busy and not request.finished and sequence.ready and sequence.n_hooked == turn


def _call_one(request: Request, sequence: Sequence, hook: Hook) -> None:
    request.busy = True  # a hook may use the engine, and so step it
    try:
        hook(sequence.logits, sequence.path)
        sequence.n_hooked += 1
    except Exception as error:
        request.fail(error)
    except BaseException:  # Ctrl-C, perhaps meant for another: nobody knows what the hook has done
        sequence.forget_logits()
        raise
    finally:
        request.busy = False


def _call_together(rows: list[tuple[Request, Sequence]], hook: Any, turn: int) -> None:
    rows = [(request, sequence) for request, sequence in rows if _next(request, sequence, turn)]
    if not rows:
        return
    for request, _ in rows:
        request.busy = True
    try:
        logits = [sequence.logits for _, sequence in rows]
        together = np.stack(logits) if len(logits) > 1 else logits[0][np.newaxis]
        hook.batch(together, [HookRow(sequence.path, request.number) for request, sequence in rows])
        if len(logits) > 1:
            for row, changed in zip(logits, together, strict=True):
                row[:] = changed
        for _, sequence in rows:
            sequence.n_hooked += 1
    except Exception as error:
        for request, _ in rows:
            request.fail(error)
    except BaseException:
        for _, sequence in rows:
            sequence.forget_logits()
        raise
    finally:
        for request, _ in rows:
            request.busy = False
