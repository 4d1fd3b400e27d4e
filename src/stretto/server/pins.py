"""Prompts pinned in the prefix cache by name: `cache_pin` in a request, `/stretto/pins` to list them."""

from __future__ import annotations

from typing import Any

from stretto.server.errors import ApiError
from stretto.server.registry import Lease
from stretto.server.slots import Slot

PINNED_FRACTION = 0.5  # of the cells, which pinned prompts may hold together


def check_pin(slot: Slot, name: str, n_tokens: int, most: int) -> None:
    """Raise if a prompt cannot be pinned, before anything is computed."""
    if slot.llm is None:
        return
    others = [pin.n_tokens for other, pin in slot.pins.items() if other != name]
    n_free = int(PINNED_FRACTION * len(slot.llm.cells)) - sum(others)
    if len(others) >= most:
        raise ApiError(
            400,
            f"{most} prompts are pinned already; release one with DELETE /stretto/pins/NAME",
            param="cache_pin",
        )
    if n_tokens > n_free:
        raise ApiError(
            400,
            f"the prompt has {n_tokens:,} tokens, and of {len(slot.llm.cells):,} cells {max(0, n_free):,} "
            "can still be pinned; release a pin, or shorten the prompt",
            param="cache_pin",
        )


def pin(lease: Lease, name: str, prompt: Any, adapter: Any = None) -> None:
    """Pin a prompt; one of the same name is released. Most of it was just computed, so it costs little."""
    with lease.llm.sequence(prompt, adapter=adapter) as sequence:
        fresh = lease.llm.cache.pin(sequence)
    old = lease.slot.pins.get(name)
    lease.slot.pins[name] = fresh
    if old is not None:
        old.release()


def release(slot: Slot, name: str) -> None:
    """Release a pinned prompt: its cells can be evicted from now on."""
    pinned = slot.pins.pop(name, None)
    if pinned is None:
        raise ApiError(404, f"{slot.name} has no pin {name[:100]!r}", param="name", code="not_found")
    pinned.release()
