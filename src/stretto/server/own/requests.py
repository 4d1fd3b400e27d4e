"""`/stretto/requests`: the running requests, for their callers and for admins, and how to cancel one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastapi import Request
from starlette.responses import Response

from stretto.server.http.bodies import make_router
from stretto.server.http.errors import ApiError, Json
from stretto.server.http.state import Caller, Running, State, get_caller, get_state

router = make_router("Stretto")


@router.get("/stretto/requests")
async def running_requests(request: Request) -> Response:
    """The requests that run: the caller's own, all of them for an admin."""
    return Json({"requests": list_requests(get_state(request), get_caller(request))})


@router.delete("/stretto/requests/{name}")
async def cancel(name: str, request: Request) -> Response:
    """Cancel a request by its `x-request-id`; its client gets an error with the code `cancelled`."""
    caller = get_caller(request)
    for generation in list(get_state(request).generations):
        if generation.id == name and _is_shown(generation, caller):
            generation.cancel()
            return Json({"cancelled": name})
    raise ApiError(404, f"no request {name[:100]!r} of yours runs here", param="name", code="not_found")


def list_requests(state: State, caller: Caller) -> list[dict[str, Any]]:
    """The requests that a caller may see, the oldest first."""
    shown = [generation for generation in state.generations if _is_shown(generation, caller)]
    return [_facts(generation, caller) for generation in sorted(shown, key=lambda one: one.since)]


def find_owned(state: State, caller: Caller, salts: dict[int, str]) -> Callable[[int], bool]:
    """Whether a sequence is a caller's: one of its running requests, or one with its salt.

    Where prefixes are shared, cells of requests that have ended belong to nobody.
    """
    running = {i for one in state.generations if one.caller == caller for i in one.progress.sequences}
    if caller.shares:
        return running.__contains__
    return lambda i: i in running or salts.get(i, "") == caller.salt


def _is_shown(generation: Running, caller: Caller) -> bool:
    return caller.admin or generation.caller == caller


def _difference(generation: Running, caller: Caller) -> dict[str, Any]:
    """Where its prompt leaves a cached one; the text there is for its own caller alone."""
    found = generation.cache_difference
    if found and generation.caller != caller:
        found = {"cache_difference": {name: found["cache_difference"][name] for name in ("token", "of")}}
    return found


def _facts(generation: Running, caller: Caller) -> dict[str, Any]:
    progress = generation.progress
    return {
        "id": generation.id,
        "model": generation.model,
        "path": generation.path,
        "state": progress.state,
        "prompt_tokens": progress.prompt_tokens,
        "tokens": progress.tokens,
        "cached": progress.cached_tokens,
        "seconds": round(time.monotonic() - generation.since, 3),
        "mine": generation.caller == caller,
        **_difference(generation, caller),
        **({"caller": generation.caller.name} if caller.admin else {}),
    }
