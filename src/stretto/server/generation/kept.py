"""Prompts pinned in the prefix cache by name: `cache_pin` in a request, `/stretto/pins` to list them.

Pins belong to their callers: each has names of its own, and an admin may see and release those of all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from stretto.errors import SnapshotError
from stretto.llm import LLM
from stretto.server.generation.fields import Body
from stretto.server.generation.generation import Generation, lease_model
from stretto.server.http.bodies import make_router, read_body
from stretto.server.http.errors import ApiError, Json, field_error, unsupported
from stretto.server.http.served_model import ServedModel
from stretto.server.http.state import Caller, get_state, require_admin
from stretto.server.settings import Settings

PINNED_FRACTION = 0.5  # of the cells, which pinned prompts may hold together


def check_pin(generation: Generation, name: str, n_tokens: int) -> None:
    """Raise if a prompt cannot be pinned, before anything is computed."""
    served, caller, most = generation.lease.model, generation.caller.name, generation.limits.pins
    if served.llm is None:
        return
    others = [key for key in served.pins if key != (caller, name)]
    n_free = int(PINNED_FRACTION * len(served.llm.cells)) - sum(served.pins[key].n_tokens for key in others)
    if sum(owner == caller for owner, _ in others) >= most:
        raise field_error(
            "cache_pin", f"{most} prompts are pinned already; release one with DELETE /stretto/pins/NAME"
        )
    if n_tokens > n_free:
        raise field_error(
            "cache_pin",
            f"the prompt has {n_tokens:,} tokens, and of {len(served.llm.cells):,} cells {max(0, n_free):,} "
            "can still be pinned; release a pin, or shorten the prompt",
        )


def pin(generation: Generation, name: str, prompt: Any) -> None:
    """Pin a prompt; one of the same name is released. Most of it was just computed, so it costs little."""
    llm, served, caller = generation.lease.llm, generation.lease.model, generation.caller
    with llm.sequence(prompt, cache_salt=caller.salt or None, adapter=generation.adapter) as sequence:
        fresh = llm.cache.pin(sequence)
    old = served.pins.get((caller.name, name))
    served.pins[caller.name, name] = fresh
    if old is not None:
        old.release()


def list_pins(served: ServedModel, caller: Caller) -> list[dict[str, Any]]:
    """The pins of a caller; those of all callers for an admin, with whose they are."""
    own = [
        {"name": name, "tokens": p.n_tokens} for (who, name), p in served.pins.items() if who == caller.name
    ]
    if not caller.admin:
        return own
    return own + [
        {"name": name, "tokens": pin.n_tokens, "caller": who}
        for (who, name), pin in served.pins.items()
        if who != caller.name
    ]


def release(served: ServedModel, caller: str, name: str) -> None:
    """Release a pinned prompt: its cells can be evicted from now on."""
    pinned = served.pins.pop((caller, name), None)
    if pinned is None:
        raise ApiError(404, f"{served.name} has no pin {name[:100]!r}", param="name", code="not_found")
    pinned.release()


# Prefixes that stay for a while: Anthropic's `cache_control`.
#
# They are pinned where they lie when their request ends, so nothing is computed for them. What one caller has
# is bounded, and so is what all have together: beyond that a prefix can be evicted like any other.

TIMED_FRACTION = 0.25  # of the cells, which they may hold together
MAX_TIMED = 4  # of one caller


@dataclass
class TimedPin:
    """A prefix, and until when it stays, by the monotonic clock."""

    tokens: tuple[int, ...]
    pin: Any
    until: float


def keep_prefix(
    generation: Generation, n_tokens: int | None, seconds: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Keep the first tokens of a request's prompt for a while, all for None; called when it has ended."""
    served, name = generation.lease.model, generation.caller.name
    llm, track = generation.lease.llm, generation.texts.requests[0].sources[0].track
    tokens = tuple(track.tokens[: track.n_prompt if n_tokens is None else n_tokens])
    with llm.engine.lock:
        release_expired(served, clock)
        own = served.timed_pins.setdefault(name, [])
        others = sum(_held(pins) for pins in served.timed_pins.values() if pins is not own)
        room = int(TIMED_FRACTION * len(llm.cells)) - others
        tokens = tokens[: max(0, room)]  # of what is too long the beginning stays
        until = clock() + seconds
        for one in list(own):  # a conversation goes on: the longer prefix has the shorter one
            if one.tokens == tokens[: len(one.tokens)] and one.until <= until:
                one.pin.release()
                own.remove(one)
        while own and tokens and (len(own) >= MAX_TIMED or _held(own) + len(tokens) > room):
            oldest = min(own, key=lambda one: one.until)
            oldest.pin.release()
            own.remove(oldest)
        pinned = llm.cache.pin_cached(tokens, track.domain) if tokens else None
        if pinned is not None:
            own.append(TimedPin(tokens[: pinned.n_tokens], pinned, until))


def release_expired(served: ServedModel, clock: Callable[[], float] = time.monotonic) -> None:
    """Release the prefixes of a model whose time is over."""
    llm = served.llm
    if not isinstance(llm, LLM):
        return
    with llm.engine.lock:
        for name, pins in list(served.timed_pins.items()):
            for one in [one for one in pins if one.until <= clock()]:
                one.pin.release()
                pins.remove(one)
            if not pins:
                del served.timed_pins[name]


def _held(pins: list[TimedPin]) -> int:
    return sum(one.pin.n_tokens for one in pins)


def keep_prefixes(generation: Generation, prefixes: list[tuple[int | None, float]]) -> None:
    """Have prefixes of a prompt kept for so many seconds once its request has ended; None is all of it."""
    if not prefixes:
        return
    served, before, loop = generation.lease.model, generation.last, asyncio.get_running_loop()

    def release_soon() -> None:
        loop.run_in_executor(None, release_expired, served)

    def keep() -> None:
        if before is not None:
            before()
        for n_tokens, seconds in prefixes:
            keep_prefix(generation, n_tokens, seconds)
            with suppress(RuntimeError):  # the server ends
                loop.call_soon_threadsafe(loop.call_later, seconds + 1.0, release_soon)

    generation.last = keep


# `POST /slots/ID?action=save|restore|erase`: llama-server's slots as texts that are remembered by a number.
#
# There are no slots: every prompt is looked up in the prefix cache. A request with `id_slot` gives its text
# that number, for its caller and model; saving writes the text with its K and V (`Sequence.save`),
# restoring brings them back into the prefix cache, where any later prompt finds them, and erasing frees its
# cells.

router = make_router("llama-server")

Action = Annotated[Literal["save", "restore", "erase"], Query(description="What to do with the text.")]
OptionalName = Annotated[str | None, Query(max_length=256, description="A model; without it, the first.")]


class SlotFile(Body):
    """The file of a saved text."""

    filename: Annotated[str, Field(pattern="^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")] | None = Field(
        None, description="Its name in the folder of --slot-save-path; not for erase."
    )


BODY = {"content": {"application/json": {"schema": SlotFile.model_json_schema()}}}


def remember(generation: Generation, number: int | None, prompts: list[list[int]]) -> None:
    """Have the text of a request remembered by the number of a slot, once it has ended."""
    if number is None or not 0 <= number < generation.max_running or len(prompts) != 1:
        return
    served, caller, before = generation.lease.model, generation.caller.name, generation.last

    def note() -> None:
        if before is not None:
            before()
        if generation.adapter is None and all(type(token) is int for token in prompts[0]):
            served.texts[caller, number] = [*prompts[0], *generation.result(0).tokens]

    generation.last = note


@router.post("/slots/{number}", openapi_extra={"requestBody": BODY})
async def act(number: int, action: Action, request: Request, model: OptionalName = None) -> Response:
    """Save, restore or erase the text that a request with this `id_slot` has left; for administrators."""
    require_admin(request)
    state = get_state(request)
    data = await request.body()
    body = await read_body(SlotFile, data, state.settings.limits) if data else None
    if not 0 <= number < state.settings.max_running:
        raise field_error(
            "id_slot", f"there is no slot {number}; they have the numbers below {state.settings.max_running}"
        )
    path = None if action == "erase" else _path(state.settings, body)
    async with lease_model(request, model or state.registry.first("generate"), "filename") as generation:
        work = {"save": _save, "restore": _restore, "erase": _erase}[action]
        found = await asyncio.to_thread(_timed, action, lambda: work(generation, number, path))
    name = {} if path is None else {"filename": path.name}
    return Json({"id_slot": number, **name, **found})


def _path(settings: Settings, body: SlotFile | None) -> Path:
    if settings.slot_path is None:
        raise unsupported("texts are saved by a server that was started with --slot-save-path", "action")
    if body is None or body.filename is None:
        raise field_error("filename", "filename is missing", "missing_field")
    return settings.slot_path / body.filename


def _timed(action: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    begun = time.monotonic()
    found = work()
    return {**found, "timings": {f"{action}_ms": round(1000 * (time.monotonic() - begun), 3)}}


def _save(generation: Generation, number: int, path: Path | None) -> dict[str, Any]:
    assert path is not None
    llm, tokens = generation.lease.llm, _text(generation, number)
    if not tokens:
        raise field_error("id_slot", f"no request has left a text in slot {number}", "not_found")
    with llm.sequence(tokens, cache_salt=generation.caller.salt or None) as sequence:
        sequence.save(path)
    return {"n_saved": len(tokens), "n_written": path.stat().st_size}


def _restore(generation: Generation, number: int, path: Path | None) -> dict[str, Any]:
    assert path is not None
    if not path.is_file():
        raise field_error("filename", f"there is no saved text {path.name!r}", "not_found")
    llm: LLM = generation.lease.llm
    # The operator's own folder, which only this server writes to: its K and V are trusted.
    try:
        with llm.restore(path, share=True, cache_salt=generation.caller.salt or None) as sequence:
            tokens = list(sequence.tokens)
    except SnapshotError as error:
        raise field_error("filename", f"{path.name} cannot be restored: {error}") from None
    generation.lease.model.texts[generation.caller.name, number] = tokens
    return {"n_restored": len(tokens), "n_read": path.stat().st_size}


def _erase(generation: Generation, number: int, path: Path | None) -> dict[str, Any]:
    tokens = _text(generation, number)
    generation.lease.model.texts.pop((generation.caller.name, number), None)
    if tokens:
        generation.lease.llm.cache.forget(tokens, cache_salt=generation.caller.salt or None)
    return {"n_erased": len(tokens)}


def _text(generation: Generation, number: int) -> list[int]:
    return generation.lease.model.texts.get((generation.caller.name, number), [])
