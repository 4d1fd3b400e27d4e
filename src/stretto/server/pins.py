"""Prompts pinned in the prefix cache by name: `cache_pin` in a request, `/stretto/pins` to list them.

Pins belong to their callers: each has names of its own, and an admin may see and release those of all.
"""

from __future__ import annotations

from typing import Any

from stretto.server.callers import Caller
from stretto.server.errors import ApiError
from stretto.server.generation import Generation
from stretto.server.served_model import ServedModel

PINNED_FRACTION = 0.5  # of the cells, which pinned prompts may hold together


def check_pin(generation: Generation, name: str, n_tokens: int) -> None:
    """Raise if a prompt cannot be pinned, before anything is computed."""
    served, caller, most = generation.lease.model, generation.caller.name, generation.limits.pins
    if served.llm is None:
        return
    others = [key for key in served.pins if key != (caller, name)]
    n_free = int(PINNED_FRACTION * len(served.llm.cells)) - sum(served.pins[key].n_tokens for key in others)
    if sum(owner == caller for owner, _ in others) >= most:
        raise ApiError(
            400,
            f"{most} prompts are pinned already; release one with DELETE /stretto/pins/NAME",
            param="cache_pin",
        )
    if n_tokens > n_free:
        raise ApiError(
            400,
            f"the prompt has {n_tokens:,} tokens, and of {len(served.llm.cells):,} cells {max(0, n_free):,} "
            "can still be pinned; release a pin, or shorten the prompt",
            param="cache_pin",
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


def listed(served: ServedModel, caller: Caller) -> list[dict[str, Any]]:
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
