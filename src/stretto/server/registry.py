"""The models of a server: loaded when first asked for, unloaded when another one needs the memory.

A request holds a `Lease` on its model for as long as it runs. To load a model, those that nobody uses are
unloaded, the least recently used first, until all that is loaded fits into the limit. If those in use are in
the way, the request waits for them, and later ones behind it, so that nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from stretto import Limits, hardware
from stretto.errors import InvalidRequest, ModelError
from stretto.llm import LLM, load
from stretto.server.errors import ApiError
from stretto.server.settings import ModelEntry, Settings
from stretto.weights import hub
from stretto.weights.gguf import GGUF
from stretto.weights.memory import memory

WORKING = 64 << 20  # bytes beside weights and cache: vocabulary, activations
SHARE = 0.8  # of the free memory, which models may take if the operator does not say

Opener = Callable[[ModelEntry], LLM]


@dataclass
class Slot:
    """A model, loaded or not."""

    entry: ModelEntry
    path: Path
    need: int  # bytes when loaded
    facts: dict[str, Any]  # from the file
    llm: LLM | None = None
    loading: asyncio.Task[None] | None = None
    users: int = 0
    used: float = 0.0  # when it was last asked for
    loads: int = 0
    load_seconds: float = 0.0  # the last time
    pins: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.entry.name


class Lease:
    """The right to use a model, until it is released; a context manager."""

    def __init__(self, registry: Registry, slot: Slot, llm: LLM, waited: float) -> None:
        self._registry = registry
        self._open = True
        self.slot = slot
        self.llm = llm
        self.waited = waited  # seconds, for the model to be ready

    def release(self) -> None:
        """Give it back. Releasing twice is fine."""
        if self._open:
            self._open = False
            self._registry.give_back(self.slot)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Registry:
    """The models by name, and the memory they share. Used by one event loop."""

    def __init__(self, settings: Settings, opener: Opener | None = None) -> None:
        self._settings = settings
        self._open = opener or self._load_file
        self.limit = _memory_limit(settings)
        self.slots = {entry.name: self._slot(entry) for entry in settings.models}
        self.unloads = 0
        self._turn = asyncio.Lock()  # first come, first served
        self._freed = asyncio.Event()

    # -- for requests --

    def find(self, name: str) -> Slot:
        """The model of that name; nothing but these names is ever looked up."""
        slot = self.slots.get(name)
        if slot is None:
            known = ", ".join(sorted(self.slots))
            raise ApiError(
                404,
                f"there is no model {name[:100]!r} here; there is {known}",
                param="model",
                code="model_not_found",
            )
        return slot

    async def lease(self, name: str) -> Lease:
        """A model ready to use; loads it, and waits for room, if need be."""
        slot, begun = self.find(name), time.monotonic()
        if slot.llm is None or self._turn.locked():
            async with self._turn:
                if slot.llm is None:
                    await self._ready(slot, begun + self._settings.load_seconds)
                return self._hand_out(slot, time.monotonic() - begun)
        return self._hand_out(slot, 0.0)

    def give_back(self, slot: Slot) -> None:
        """A lease has ended."""
        slot.users -= 1
        slot.used = time.monotonic()
        if not slot.users:
            self._freed.set()

    async def unload(self, name: str) -> bool:
        """Unload a model now; False if it is in use."""
        slot = self.find(name)
        async with self._turn:
            if slot.users:
                return False
            if slot.llm is not None:
                await self._unload(slot)
            return True

    async def close(self) -> None:
        """Unload everything."""
        for slot in self.slots.values():
            if slot.loading is not None:
                await asyncio.wait([slot.loading])
            if slot.llm is not None:
                await self._unload(slot)

    @property
    def loaded_bytes(self) -> int:
        """What the loaded models take together, as far as their files tell."""
        return sum(
            slot.need for slot in self.slots.values() if slot.llm is not None or slot.loading is not None
        )

    # -- within --

    def _hand_out(self, slot: Slot, waited: float) -> Lease:
        assert slot.llm is not None
        slot.users += 1
        slot.used = time.monotonic()
        return Lease(self, slot, slot.llm, waited)

    async def _ready(self, slot: Slot, deadline: float) -> None:
        """Make room for a model and load it. If whoever waits goes away, it is loaded all the same."""
        if slot.loading is None:
            await self._make_room(slot, deadline)
            slot.loading = asyncio.create_task(self._load(slot))
        await asyncio.shield(slot.loading)

    async def _make_room(self, slot: Slot, deadline: float) -> None:
        while self.loaded_bytes + slot.need > self.limit:
            idle = [one for one in self.slots.values() if one.llm is not None and not one.users]
            if idle:
                await self._unload(min(idle, key=lambda one: one.used))
                continue
            self._freed.clear()
            try:
                await asyncio.wait_for(self._freed.wait(), max(0.0, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                raise self._no_room(slot) from None

    def _no_room(self, slot: Slot) -> ApiError:
        busy = ", ".join(f"{one.name} ({_mb(one.need)})" for one in self.slots.values() if one.users)
        return ApiError(
            503,
            f"{slot.name} needs {_mb(slot.need)}; models may take {_mb(self.limit)}, of which those in use "
            f"take {_mb(self.loaded_bytes)}: {busy}; try again later",
            code="no_memory",
            retry_after=10,
        )

    async def _load(self, slot: Slot) -> None:
        begun = time.monotonic()
        try:
            slot.llm = await asyncio.to_thread(self._open, slot.entry)
            slot.loads += 1
            slot.load_seconds = time.monotonic() - begun
        finally:
            slot.loading = None

    async def _unload(self, slot: Slot) -> None:
        llm, slot.llm = slot.llm, None
        slot.pins.clear()
        self.unloads += 1
        if llm is not None:
            await asyncio.to_thread(llm.close)

    def _load_file(self, entry: ModelEntry) -> LLM:
        settings = self._settings
        return load(
            self.slots[entry.name].path,
            backend=settings.backend,
            threads=settings.threads,
            cells=settings.cells,
            kv=settings.kv,
            precision=settings.precision,
            limits=Limits(max_running=settings.max_running, max_queue=settings.max_queue),
            vision=None if entry.vision is None else hub.resolve(entry.vision),
        )

    def _slot(self, entry: ModelEntry) -> Slot:
        """Read the head of a model's file; what could never be loaded is refused now."""
        path = hub.resolve(entry.source)
        with GGUF(path) as file:
            found = memory(file)
            cache = found.cache_bytes(self._settings.kv, self._settings.cells)
            facts = {
                "architecture": str(file.metadata.get("general.architecture", "")),
                "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
                "formats": dict(found.weights),
                "context_length": found.context_length,
                "file_bytes": path.stat().st_size,
                "modified": path.stat().st_mtime,
                "template": str(file.metadata.get("tokenizer.chat_template", "") or ""),
                "license": str(file.metadata.get("general.license", "") or ""),
            }
        if cache is None:
            raise ModelError("its metadata do not say how large its cache is", path=path)
        seeing = 0
        if entry.vision is not None:
            with GGUF(hub.resolve(entry.vision)) as file:
                seeing = memory(file).packed_bytes
        facts["vision"] = entry.vision is not None
        need = found.packed_bytes + seeing + cache + WORKING
        if need > self.limit:
            raise InvalidRequest(
                f"{entry.name} cannot fit: it needs {_mb(need)} ({_mb(need - cache - WORKING)} of weights, "
                f"{_mb(cache)} for {self._settings.cells:,} cells, {_mb(WORKING)} to work with), and models "
                f"may take {_mb(self.limit)}; give fewer --cells, or more --memory"
            )
        return Slot(entry, path, need, facts)


def _memory_limit(settings: Settings) -> int:
    if settings.memory is not None:
        return settings.memory
    free = hardware.probe(measure=False).memory_free
    return int(SHARE * free) if free is not None else 1 << 62


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
