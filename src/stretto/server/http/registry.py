"""The models of a server: loaded when first asked for, unloaded when another one needs the memory.

A request holds a `Lease` on its model for as long as it runs. To load a model, idle models are unloaded, the
least recently used first, until all loaded ones fit into the limit. If the models in use leave too little,
the request waits for them, and later requests wait behind it, so that none starves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stretto import Limits, hardware, load
from stretto.errors import InvalidRequest
from stretto.hardware.gpus import cuda_devices
from stretto.llm import LLM
from stretto.loading.images import find_encoder
from stretto.server.generation.fields import NumberedAdapter
from stretto.server.http.errors import ApiError, field_error
from stretto.server.http.served_model import ServedModel, make_served, megabytes
from stretto.server.http.usage import resident
from stretto.server.settings import ModelEntry, Settings

MEMORY_FRACTION = 0.8  # of the free memory, the default limit for models

MAX_MODELS = 256
IDLE_POLL_SECONDS = 1.0  # between two looks for models that are not used

Opener = Callable[[ModelEntry], LLM]


class Lease:
    """The right to use a model, until it is released; a context manager."""

    def __init__(
        self, registry: Registry, served: ServedModel, llm: LLM, waited: float, adapter: str | None = None
    ) -> None:
        self._registry = registry
        self._open = True
        self.model = served
        self.llm = llm
        self.waited = waited  # seconds, for the model to be ready
        self.adapter = adapter  # that the request named with the model

    def release(self) -> None:
        """Return it to the registry. Releasing twice is fine."""
        if self._open:
            self._open = False
            self._registry.give_back(self.model)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Registry:
    """The models by name, and the memory they share. Used by one event loop."""

    def __init__(self, settings: Settings, opener: Opener | None = None) -> None:
        self._settings = settings
        self.opener = opener or self.load_file
        self.limit = _memory_limit(settings)
        self.models = {entry.name: make_served(entry, settings, self.limit) for entry in settings.models}
        self.unloads = 0
        self._load_lock = asyncio.Lock()  # first come, first served
        self._freed = asyncio.Event()

    # -- for requests --

    def find(self, name: str) -> ServedModel:
        """The model of that name; nothing but these names is ever looked up."""
        return self.resolve(name)[0]

    def first(self, verb: str) -> str:
        """The name of the first model that has the verb, for requests that name none."""
        found = next((served.name for served in self.models.values() if verb in served.facts["verbs"]), None)
        if found is None:
            raise field_error("model", f"model is missing, and no model here can {verb}", "missing_field")
        return found

    def names(self) -> list[tuple[str, ServedModel]]:
        """All names that requests may give: models, and adapters as `MODEL:ADAPTER`."""
        return [
            (name, served)
            for served in self.models.values()
            for name in (served.name, *(f"{served.name}:{adapter}" for adapter, _ in served.entry.adapters))
        ]

    def resolve(self, name: str) -> tuple[ServedModel, str | None]:
        """The model of a name, and the adapter behind its colon."""
        served, adapter = self.models.get(name), None
        if served is None:
            base, _, adapter = name.rpartition(":")
            served = self.models.get(base)
            served = served if served is not None and adapter in dict(served.entry.adapters) else None
        if served is None:  # vLLM's clients name the adapter alone
            having = [one for one in self.models.values() if name in dict(one.entry.adapters)]
            served, adapter = (having[0], name) if len(having) == 1 else (None, None)
        if served is None:
            known = ", ".join(sorted(name for name, _ in self.names()))
            raise field_error(
                "model",
                f"there is no model {name[:100]!r} here; there is {known}",
                "model_not_found",
                status=404,
            )
        return served, adapter

    async def lease(self, name: str, verb: str = "generate") -> Lease:
        """A lease on a loaded model that has the verb; loads it, and waits for memory, if necessary."""
        (served, adapter), started = self.resolve(name), time.monotonic()
        if adapter is not None and verb != "generate":
            raise field_error("model", f"adapters are for texts, not for {verb}", "unsupported")
        if served.llm is None or self._load_lock.locked():
            async with self._load_lock:
                served = self.find(name)  # it may have been removed meanwhile
                if served.llm is None:
                    await self._ready(served, started + self._settings.load_seconds)
                return self._hand_out(served, adapter, verb, time.monotonic() - started)
        return self._hand_out(served, adapter, verb, 0.0)

    def give_back(self, served: ServedModel) -> None:
        """Note that a lease has ended."""
        served.users -= 1
        served.used = time.monotonic()
        if not served.users:
            self._freed.set()

    async def load(self, name: str) -> ServedModel:
        """Load a model that is not loaded; waits for memory as a request does."""
        deadline = time.monotonic() + self._settings.load_seconds
        self.find(name)
        async with self._load_lock:
            served = self.find(name)
            if served.llm is None:
                await self._ready(served, deadline)
            served.used = time.monotonic()
        return served

    async def unload(self, name: str) -> bool:
        """Unload a model now; False if it is in use."""
        served = self.find(name)
        async with self._load_lock:
            return await self._unload_idle(served)

    async def unload_idle(self, seconds: float) -> None:
        """Unload models that no request has used for so long, until it is cancelled."""
        while True:
            await asyncio.sleep(min(seconds / 2, IDLE_POLL_SECONDS))
            for served in list(self.models.values()):
                if served.is_idle_for(seconds):
                    async with self._load_lock:
                        if served.is_idle_for(seconds):
                            await self._unload(served)

    # -- models that come and go --

    async def add(self, entry: ModelEntry) -> ServedModel:
        """Serve one more model, which must be on this machine; one of that name stays if it is the same.

        Raises for a model that can never fit, as at the start of the server. Nothing is loaded.
        """
        self.require_free(entry)
        if (served := self.models.get(entry.name)) is not None:
            return served
        if len(self.models) >= MAX_MODELS:
            raise field_error(
                "source", f"there are {MAX_MODELS} models here; remove one first", "over_limit", status=409
            )
        served = await asyncio.to_thread(make_served, entry, self._settings, self.limit)
        self.require_free(entry)  # another one may have been added meanwhile
        served.added = True
        # A new table: others may be reading the old one.
        self.models = {**self.models, entry.name: self.models.get(entry.name, served)}
        return self.models[entry.name]

    def require_free(self, entry: ModelEntry) -> None:
        """Raise if another model has this name."""
        served = self.models.get(entry.name)
        if served is not None and served.entry != entry:
            raise field_error(
                "name",
                f"{entry.name} is the name of another model here; give another name",
                "name_taken",
                status=409,
            )

    async def remove(self, name: str) -> bool:
        """Unload a model that was added, and serve it no more; False if it is in use. Its file stays."""
        served = self.find(name)
        if not served.added:
            raise ApiError(
                409, f"{served.name} was given to the server by its operator, and stays", param="model"
            )
        async with self._load_lock:
            if not await self._unload_idle(served):
                return False
            self.models = {key: one for key, one in self.models.items() if one is not served}
            return True

    async def close(self) -> None:
        """Unload everything."""
        for served in self.models.values():
            if served.loading is not None:
                await asyncio.wait([served.loading])
            if served.llm is not None:
                await self._unload(served)

    @property
    def loaded_bytes(self) -> int:
        """Memory of all loaded models, by the estimate from their files."""
        return sum(
            served.need
            for served in self.models.values()
            if served.llm is not None or served.loading is not None
        )

    # -- within --

    async def _unload_idle(self, served: ServedModel) -> bool:
        """Unload a model; False if it is in use. Under the lock."""
        if served.loading is not None:  # for a client that has gone
            await asyncio.wait([served.loading])
        if served.users:
            return False
        if served.llm is not None:
            await self._unload(served)
        return True

    def _hand_out(self, served: ServedModel, adapter: str | None, verb: str, waited: float) -> Lease:
        assert served.llm is not None
        if verb not in served.llm.verbs:
            has = ", ".join(served.llm.verbs)
            raise field_error("model", f"{served.name} cannot {verb}; it can {has}", "unsupported")
        served.users += 1
        served.used = time.monotonic()
        return Lease(self, served, served.llm, waited, adapter)

    async def _ready(self, served: ServedModel, deadline: float) -> None:
        """Load a model, once there is memory for it. If the client disconnects, it is loaded all the same."""
        if served.loading is None:
            await self._unload_until_fits(served, deadline)
            served.loading = asyncio.create_task(self._load(served))
        await asyncio.shield(served.loading)

    async def _unload_until_fits(self, served: ServedModel, deadline: float) -> None:
        while self.loaded_bytes + served.need > self.limit:
            idle = [one for one in self.models.values() if one.llm is not None and not one.users]
            if idle:
                await self._unload(min(idle, key=lambda one: one.used))
                continue
            self._freed.clear()
            try:
                await asyncio.wait_for(self._freed.wait(), max(0.0, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                raise self._no_room(served) from None

    def _no_room(self, served: ServedModel) -> ApiError:
        busy = ", ".join(f"{one.name} ({megabytes(one.need)})" for one in self.models.values() if one.users)
        return ApiError(
            503,
            f"{served.name} needs {megabytes(served.need)}; models may take {megabytes(self.limit)}, "
            f"of which those in use take {megabytes(self.loaded_bytes)}: {busy}; try again later",
            code="no_memory",
            retry_after=10,
        )

    async def _load(self, served: ServedModel) -> None:
        started, served.loading_from = time.monotonic(), resident() or 0
        try:
            served.llm = await asyncio.to_thread(self._open_adapted, served.entry)
            served.loads += 1
            served.load_seconds = time.monotonic() - started
        finally:
            served.loading = None

    async def _unload(self, served: ServedModel) -> None:
        served.note_unload()
        llm, served.llm = served.llm, None
        served.pins.clear()
        served.timed_pins.clear()
        self.unloads += 1
        if llm is not None:
            await asyncio.to_thread(llm.close)

    def _open_adapted(self, entry: ModelEntry) -> LLM:
        llm = self.opener(entry)
        try:
            for name, path in entry.adapters:
                llm.load_adapter(name, path)
        except BaseException:
            llm.close()
            raise
        return llm

    def load_file(self, entry: ModelEntry) -> LLM:
        """Open the file of an entry, by its settings: what opens models if nothing else is given."""
        settings = self._settings
        if self.models[entry.name].is_task:
            return load(entry.source, threads=settings.threads)
        return load(
            self.models[entry.name].path,
            **settings.loading(entry),
            repack=self.models[entry.name].repack,
            chat_template=entry.template,
            limits=Limits(
                max_running=settings.max_running,
                max_queue=settings.max_queue,
                checkpoint_bytes=settings.checkpoint_bytes,
            ),
            vision=None if entry.vision is None else find_encoder(entry.vision),
            **settings.disk_cache,
        )


def _memory_limit(settings: Settings) -> int:
    if settings.memory is not None:
        return settings.memory
    if settings.device == "cuda" and (devices := cuda_devices()):
        return int(MEMORY_FRACTION * devices[0].memory_total)
    free = hardware.probe(measure=False).memory_free
    return int(MEMORY_FRACTION * free) if free is not None else 1 << 62


# Adapters of served models: `--adapter NAME=PATH`, and in requests `model="base:NAME"` or `lora`.


def with_adapters(entries: Sequence[ModelEntry], given: Sequence[str]) -> tuple[ModelEntry, ...]:
    """The models with adapters: `[MODEL:]NAME=PATH` each; MODEL may be left out if there is one."""
    by_name = {entry.name: entry for entry in entries}
    for text in given:
        name, equals, path = text.partition("=")
        base, colon, short = name.rpartition(":")
        if not colon and len(by_name) == 1:
            base = next(iter(by_name))
        if not equals or not path or not short or base not in by_name:
            raise InvalidRequest(
                f"--adapter takes [MODEL:]NAME=PATH with the name of a --model, not {text!r}"
            )
        entry = by_name[base]
        if short in dict(entry.adapters):
            raise InvalidRequest(f"--adapter: {base} has two adapters {short!r}; give one another name")
        by_name[base] = replace(entry, adapters=(*entry.adapters, (short, path)))
    return tuple(by_name[entry.name] for entry in entries)


def choose_adapter(options: dict[str, Any], lease: Lease) -> None:
    """Put a request's adapter into its options: the one that its model names, or `lora`, not both.

    Adapters by number become names. A request that says nothing gets those of `POST /lora-adapters`.
    """
    given, served = options.get("adapter"), lease.model
    if isinstance(given, list):
        options.pop("adapter")
        if mixed := name_adapters(given, served):
            options["adapter"] = mixed
    if lease.adapter is None:
        if given is None and served.scales:
            options["adapter"] = dict(served.scales)
        return
    if given is not None:
        raise field_error(
            "lora", f"the model names the adapter {lease.adapter!r}, and lora others; give one of them"
        )
    options["adapter"] = lease.adapter


def name_adapters(given: Sequence[NumberedAdapter], served: ServedModel) -> dict[str, float]:
    """Names with scales, of adapters that were named by their numbers; those of scale 0 are left out."""
    names = [name for name, _ in served.entry.adapters]
    for one in given:
        if one.id >= len(names):
            raise field_error(
                "lora", f"{served.name} has {len(names)} adapters, and none of the number {one.id}"
            )
    return {names[one.id]: one.scale for one in given if one.scale}
