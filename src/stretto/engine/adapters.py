"""The adapters of a runner: loaded by name, looked up by requests, and kept while a sequence uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stretto.backends.base import Adapts, Backend, LoRA, Mix
from stretto.cache.snapshot_head import SavedAdapter
from stretto.engine.track import Track
from stretto.errors import InvalidRequest, SnapshotError, Unsupported, wrong_value
from stretto.sampling.params import check_number

MAX_PARTS = 16  # adapters that one request may mix
MAX_SCALE = 1000.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Parts = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class AdapterInfo:
    """A loaded adapter.

    - `path`: the file or folder that it was read from
    - `rank`: the largest rank of its matrices; `matrices`: how many it changes
    - `layers`: those at whose end it adds a vector
    - `fingerprint`: of all its numbers; saved sequences name it
    """

    name: str
    path: str
    rank: int
    matrices: int
    fingerprint: str
    layers: tuple[int, ...] = ()


class Adapters(Mapping[str, AdapterInfo]):
    """The loaded adapters by name. `tracks` are those that are open."""

    def __init__(self, backend: Backend, tracks: Mapping[int, Track]) -> None:
        self._backend = backend
        self._tracks = tracks
        self._loaded: dict[str, AdapterInfo] = {}

    def __getitem__(self, name: str) -> AdapterInfo:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._loaded))

    def __len__(self) -> int:
        return len(self._loaded)

    def __repr__(self) -> str:
        return f"<Adapters {', '.join(self._loaded) or 'none'}>"

    def able(self) -> Adapts:
        """The backend, if it can compute with adapters; else `Unsupported`."""
        if not isinstance(self._backend, Adapts):
            raise Unsupported(
                f"the {self._backend.name} backend runs no adapters; backend='native' does, and "
                "stretto merge writes a model with one for any backend"
            )
        return self._backend

    def check_free(self, name: str) -> None:
        """Raise unless an adapter can get this name."""
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise wrong_value("name", name, "up to 64 letters, digits, '.', '_' and '-'")
        if name in self._loaded:
            raise InvalidRequest(
                f"an adapter {name!r} is loaded already, from {self._loaded[name].path}; unload it first",
                param="name",
                value=name,
            )

    def load(self, name: str, lora: LoRA) -> None:
        """Have an adapter ready."""
        self.check_free(name)
        if lora.vectors and self._backend.spec.streams is not None:
            raise Unsupported("vectors cannot be added to a residual of several streams")
        self.able().load_adapter(name, lora)
        self._loaded[name] = AdapterInfo(
            name, str(lora.path), lora.rank, len(lora.pairs), lora.fingerprint, tuple(sorted(lora.vectors))
        )

    def unload(self, name: str) -> None:
        """Free an adapter that no sequence uses."""
        self._known(name)
        users = [track.id for track in self._tracks.values() if track.mix and name in dict(track.mix.parts)]
        if users:
            raise InvalidRequest(
                f"the adapter {name!r} is in use by {len(users)} sequences, such as {users[0]}; close them, "
                "or wait for their requests",
                param="name",
                value=name,
            )
        self.able().unload_adapter(name)
        del self._loaded[name]

    def mix(self, parts: Parts) -> Mix | None:
        """The adapters of a request; None if they change nothing."""
        used = [(name, scale) for name, scale in sorted(parts) if self._known(name) and scale]
        if not used:
            return None
        key = ",".join(f"{self._loaded[name].fingerprint}*{scale!r}" for name, scale in used)
        return Mix(tuple(used), key)

    def saved(self, mix: Mix | None) -> tuple[SavedAdapter, ...]:
        """The adapters of a sequence, as its file names them."""
        parts = () if mix is None else mix.parts
        return tuple(SavedAdapter(name, scale, self._loaded[name].fingerprint) for name, scale in parts)

    def restored(self, adapters: tuple[SavedAdapter, ...], path: Path) -> Mix | None:
        """The adapters that a file names; `SnapshotError` unless the very same ones are loaded."""
        for one in adapters:
            found = self._loaded.get(one.name)
            if found is None:
                raise SnapshotError(
                    f"saved with the adapter {one.name!r}, which is not loaded; llm.load_adapter loads it",
                    path=path,
                )
            if found.fingerprint != one.fingerprint:
                raise SnapshotError(
                    f"saved with another adapter {one.name!r} than the one of that name here, {found.path}; "
                    "load that one",
                    path=path,
                )
        return self.mix(tuple((one.name, one.scale) for one in adapters))

    def _known(self, name: object) -> AdapterInfo:
        if not isinstance(name, str) or name not in self._loaded:
            there = ", ".join(map(repr, self._loaded))
            only = f", only {there}" if there else ""
            raise InvalidRequest(
                f"no adapter {name!r:.80} is loaded{only}; llm.load_adapter loads one",
                param="adapter",
                value=name,
            )
        return self._loaded[name]


def adapter_parts(adapter: object) -> Parts:
    """An `adapter` option, checked: a name, or names with a scale for each. The names may not be known."""
    if adapter is None:
        return ()
    if isinstance(adapter, str):
        return ((adapter, 1.0),)
    if not isinstance(adapter, Mapping) or not all(isinstance(name, str) for name in adapter):
        raise wrong_value("adapter", adapter, "the name of one, or names with a scale for each")
    if len(adapter) > MAX_PARTS:
        raise InvalidRequest(
            f"adapter names {len(adapter)} adapters; at most {MAX_PARTS} can be mixed", param="adapter"
        )
    for name, scale in adapter.items():
        check_number(f"the scale of adapter {name!r:.80}", scale, -MAX_SCALE, MAX_SCALE, param="adapter")
    return tuple((name, float(scale)) for name, scale in adapter.items())


def check_same(track: Track, mix: Mix | None) -> None:
    """Raise for adapters that are not those of the sequence that a request continues."""
    if mix != track.mix:
        raise InvalidRequest(
            f"the sequence was computed with {_named(track.mix)}, and cannot be continued with "
            f"{_named(mix)}; give the adapter to llm.sequence",
            param="adapter",
        )


def _named(mix: Mix | None) -> str:
    return "no adapter" if mix is None else f"the adapter {mix}"
