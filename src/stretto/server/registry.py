"""The models of a server: loaded when first asked for, unloaded when another one needs the memory.

A request holds a `Lease` on its model for as long as it runs. To load a model, idle models are unloaded, the
least recently used first, until all loaded ones fit into the limit. If the models in use leave too little,
the request waits for them, and later requests wait behind it, so that none starves.
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
from stretto.models import read_spec
from stretto.models.summary import model_memory
from stretto.server.errors import ApiError
from stretto.server.settings import ModelEntry, Settings
from stretto.weights import hub
from stretto.weights.gguf import GGUF
from stretto.weights.memory import memory

WORKING_BYTES = 64 << 20  # besides weights and cache: vocabulary, activations
MEMORY_FRACTION = 0.8  # of the free memory, the default limit for models

Opener = Callable[[ModelEntry], LLM]


@dataclass
class Slot:
    """A model, loaded or not."""

    entry: ModelEntry
    path: Path
    need: int  # bytes when loaded
    facts: dict[str, Any]  # from the file
    repack: bool | str = "auto"  # as `stretto.load` takes it: False if the weights have to stay in the file
    llm: LLM | None = None
    loading: asyncio.Task[None] | None = None
    users: int = 0
    used: float = 0.0  # when it was last leased or released, by the monotonic clock
    loads: int = 0
    load_seconds: float = 0.0  # the last time
    pins: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in requests."""
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
        """Return it to the registry. Releasing twice is fine."""
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
        self._load_lock = asyncio.Lock()  # first come, first served
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
        """A lease on a loaded model; loads it, and waits for memory, if necessary."""
        slot, started = self.find(name), time.monotonic()
        if slot.llm is None or self._load_lock.locked():
            async with self._load_lock:
                if slot.llm is None:
                    await self._ready(slot, started + self._settings.load_seconds)
                return self._hand_out(slot, time.monotonic() - started)
        return self._hand_out(slot, 0.0)

    def give_back(self, slot: Slot) -> None:
        """Note that a lease has ended."""
        slot.users -= 1
        slot.used = time.monotonic()
        if not slot.users:
            self._freed.set()

    async def unload(self, name: str) -> bool:
        """Unload a model now; False if it is in use."""
        slot = self.find(name)
        async with self._load_lock:
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
        """Memory of all loaded models, by the estimate from their files."""
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
        """Load a model, once there is memory for it. If the client disconnects, it is loaded all the same."""
        if slot.loading is None:
            await self._unload_until_fits(slot, deadline)
            slot.loading = asyncio.create_task(self._load(slot))
        await asyncio.shield(slot.loading)

    async def _unload_until_fits(self, slot: Slot, deadline: float) -> None:
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
        started = time.monotonic()
        try:
            slot.llm = await asyncio.to_thread(self._open, slot.entry)
            slot.loads += 1
            slot.load_seconds = time.monotonic() - started
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
            repack=self.slots[entry.name].repack,
            limits=Limits(max_running=settings.max_running, max_queue=settings.max_queue),
            vision=None if entry.vision is None else hub.resolve(entry.vision),
        )

    def _slot(self, entry: ModelEntry) -> Slot:
        """Read the head of a model's file; raises for a model that can never be loaded."""
        path = hub.resolve(entry.source)
        with GGUF(path) as file:
            needs = model_memory(file, read_spec(file))
            cache = needs.cache_bytes(self._settings.kv, self._settings.cells)
            facts = {
                "architecture": str(file.metadata.get("general.architecture", "")),
                "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
                "formats": dict(needs.weights),
                "context_length": needs.context_length,
                "file_bytes": file.nbytes,
                "modified": path.stat().st_mtime,
                "template": str(file.metadata.get("tokenizer.chat_template", "") or ""),
                "license": str(file.metadata.get("general.license", "") or ""),
            }
        if cache is None:
            raise ModelError("its metadata do not say how large its cache is", path=path)
        encoder_bytes = 0
        if entry.vision is not None:
            with GGUF(hub.resolve(entry.vision)) as file:
                encoder_bytes = memory(file).packed_bytes
        facts["vision"] = entry.vision is not None
        repack = self._settings.repack
        need = needs.packed_bytes + encoder_bytes + cache + WORKING_BYTES
        if repack is False or (repack == "auto" and need > self.limit):
            repack = False
            need -= needs.packed_bytes
        if need > self.limit:
            raise InvalidRequest(
                f"{entry.name} cannot fit: it needs {_mb(need)} "
                f"({_mb(need - cache - WORKING_BYTES)} of weights, "
                f"{_mb(cache)} for {self._settings.cells:,} cells, {_mb(WORKING_BYTES)} to work with), "
                f"and models may take {_mb(self.limit)}; give fewer --cells, or more --memory"
            )
        return Slot(entry, path, need, facts, repack)


def _memory_limit(settings: Settings) -> int:
    if settings.memory is not None:
        return settings.memory
    free = hardware.probe(measure=False).memory_free
    return int(MEMORY_FRACTION * free) if free is not None else 1 << 62


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
