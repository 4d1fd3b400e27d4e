"""The head of a saved sequence: its fields, and the checks against the model that restores it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.cache.snapshot_parts import STATE_KEYS, SavedImages, SavedStates
from stretto.errors import SnapshotError, wrong_value

# The adapters that a saved sequence was computed with, as text of its head.

KEY = "adapters"
MAX_ADAPTERS = 16
FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class SavedAdapter:
    """One adapter of a sequence."""

    name: str
    scale: float
    fingerprint: str


def adapters_text(adapters: tuple[SavedAdapter, ...]) -> str:
    """The adapters as text."""
    return json.dumps([[one.name, one.scale, one.fingerprint] for one in adapters])


def adapters_from(text: str, path: Path) -> tuple[SavedAdapter, ...]:
    """The adapters that a text names; `SnapshotError` if it is none of ours."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_ADAPTERS or not all(map(_is_one, found)):
        raise SnapshotError(f"{text[:80]!r} names no adapters", path=path, field=KEY)
    return tuple(SavedAdapter(name, float(scale), fingerprint) for name, scale, fingerprint in found)


def _is_one(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    name, scale, fingerprint = entry
    return (
        isinstance(name, str)
        and len(name) <= 64
        and isinstance(scale, (int, float))
        and isfinite(scale)
        and isinstance(fingerprint, str)
        and FINGERPRINT.fullmatch(fingerprint) is not None
    )


Ints = NDArray[np.int32]

FORMAT = "stretto sequence"
VERSION, WITH_STATES = "1", "2"  # without and with recurrent states
ALL = "all"  # how `exact` is written where it is None

NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
HALF_CHARACTER = re.compile(r"([0-9a-f]{2}){0,3}")
KEYS = {
    *("format", "version", "model", "layout", "n_prompt", "exact", "seed", "index", "draws"),
    *("waiting", "fresh", "cells", "checksum"),
}


@dataclass(frozen=True)
class Snapshot:
    """A sequence without its K and V."""

    model: str  # the fingerprint of the model's file
    layout: str  # format of a cell's bytes
    tokens: Ints  # int32[n]
    positions: Ints  # int32[n], increasing; there may be holes
    n_prompt: int  # tokens from here on count as generated
    exact: int | None  # number of leading tokens whose K and V a recomputation would give; None: all
    seed: int  # the random stream; `draws` is its position
    index: int
    draws: int
    waiting: bytes = b""  # of an incomplete UTF-8 character
    fresh: bool = False  # whether the next token starts a text
    images: SavedImages | None = None  # among the tokens
    states: SavedStates | None = None  # of recurrent layers
    adapters: tuple[SavedAdapter, ...] = ()  # that it was computed with

    def metadata(self, cells: str, states: str = "") -> dict[str, str]:
        """All but the tensors as text; `cells` and `states` are checksums of these."""
        fields = {
            "format": FORMAT,
            "version": VERSION if self.states is None else WITH_STATES,
            "model": self.model,
            "layout": self.layout,
            "n_prompt": str(self.n_prompt),
            "exact": ALL if self.exact is None else str(self.exact),
            "seed": str(self.seed),
            "index": str(self.index),
            "draws": str(self.draws),
            "waiting": self.waiting.hex(),
            "fresh": str(int(self.fresh)),
            "cells": cells,
        }
        if self.images is not None:
            fields["images"] = self.images.digest()
        if self.states is not None:
            fields |= self.states.metadata(states)
        if self.adapters:
            fields[KEY] = adapters_text(self.adapters)
        return {**fields, "checksum": _checksum(fields, self.tokens, self.positions)}

    @staticmethod
    def check_version(metadata: Mapping[str, str], path: Path) -> None:
        """Raise unless this is a saved sequence of a supported version."""
        if metadata.get("format") != FORMAT:
            raise SnapshotError(
                f"no sequence that Stretto saved: its format is {metadata.get('format')!r}, not {FORMAT!r}",
                path=path,
            )
        if metadata.get("version") not in (VERSION, WITH_STATES):
            raise SnapshotError(
                f"version {metadata.get('version')!r} of the format is not known, only {VERSION!r} and "
                f"{WITH_STATES!r}; "
                "read it with the version of Stretto that saved it",
                path=path,
            )

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, str],
        tokens: Ints,
        positions: Ints,
        path: Path,
        images: SavedImages | None = None,
    ) -> Snapshot:
        """Parse the result of `metadata`; raises `SnapshotError` if its checksum is wrong."""
        has_states = metadata.get("version") == WITH_STATES
        keys = KEYS if images is None else KEYS | {"images"}
        keys = keys | STATE_KEYS if has_states else keys
        keys = keys | {KEY} if KEY in metadata else keys
        if metadata.keys() != keys:
            odd = ", ".join(sorted(metadata.keys() ^ keys))[:200]
            raise SnapshotError(f"damaged: keys are missing or too many: {odd}", path=path)
        fields = {key: value for key, value in metadata.items() if key != "checksum"}
        if metadata["checksum"] != _checksum(fields, tokens, positions):
            raise SnapshotError("damaged: the checksum of its head and tokens is wrong", path=path)
        if images is not None and metadata["images"] != images.digest():
            raise SnapshotError("damaged: the checksum of its images is wrong", path=path)

        def number(key: str, limit: int) -> int:
            text = metadata[key]
            if not NUMBER.fullmatch(text) or int(text) > limit:
                raise SnapshotError(f"{text[:40]!r} is no number from 0 to {limit}", path=path, field=key)
            return int(text)

        if not HALF_CHARACTER.fullmatch(metadata["waiting"]):
            raise SnapshotError("up to three bytes can wait for their character", path=path, field="waiting")
        return cls(
            model=metadata["model"],
            layout=metadata["layout"],
            tokens=tokens,
            positions=positions,
            n_prompt=number("n_prompt", len(tokens)),
            exact=None if metadata["exact"] == ALL else number("exact", len(tokens)),
            seed=number("seed", (1 << 64) - 1),
            index=number("index", (1 << 64) - 1),
            draws=number("draws", 1 << 63),
            waiting=bytes.fromhex(metadata["waiting"]),
            fresh=number("fresh", 1) == 1,
            images=images,
            states=SavedStates.from_metadata(metadata, path) if has_states else None,
            adapters=adapters_from(metadata[KEY], path) if KEY in metadata else (),
        )

    def check(self, path: Path) -> None:
        """Raise unless tokens and positions can be those of a sequence."""
        if len(self.tokens) != len(self.positions):
            raise SnapshotError(f"{len(self.tokens)} tokens and {len(self.positions)} positions", path=path)
        if self.images is not None:
            self.images.check(len(self.tokens), path)
        if not len(self.tokens):
            if self.states is not None:
                raise SnapshotError("states of a sequence without tokens", path=path)
            return
        if self.tokens.min() < 0 or self.positions[0] < 0:
            raise SnapshotError(
                f"token {self.tokens.min()} and position {self.positions[0]} are the smallest; "
                "0 is the least that can be",
                path=path,
            )
        stays = np.flatnonzero(self.positions[1:] <= self.positions[:-1])
        if len(stays):
            before, behind = self.positions[stays[0] : stays[0] + 2].tolist()
            raise SnapshotError(
                f"token {stays[0] + 1} stands at position {behind}, behind one at {before}; "
                "positions must increase",
                path=path,
            )
        if self.states is not None:
            self.states.check(self.positions, path)


@dataclass(frozen=True)
class Expected:
    """The properties of a model that a saved sequence must match."""

    model: str
    layout: str
    cell_bytes: int
    n_vocab: int
    n_embd: int
    context_length: int
    state_layout: str = ""  # of recurrent layers, if the model has any
    slot_bytes: int = 0

    def check(self, saved: Snapshot, path: Path) -> None:
        """Raise `SnapshotError` if the model cannot continue the saved sequence."""
        if saved.model != self.model:
            raise SnapshotError(
                f"saved by another model, with the fingerprint {saved.model[:64]!r}, not {self.model!r}; "
                "load that one, or compute the tokens anew with llm.sequence",
                path=path,
            )
        if saved.layout != self.layout:
            raise SnapshotError(
                f"saved from a cache of the kind {saved.layout[:80]!r}, not {self.layout!r}; "
                "load the model with the backend, kv and precision that it had",
                path=path,
            )
        if not len(saved.tokens):
            return
        if saved.tokens.max() >= self.n_vocab:
            index = int(saved.tokens.argmax())
            raise SnapshotError(
                f"token {index} is {saved.tokens[index]}, and the vocabulary has 0 to {self.n_vocab - 1}",
                path=path,
            )
        if saved.positions[-1] >= self.context_length:
            raise SnapshotError(
                f"the last token stands at position {saved.positions[-1]}, and the context has "
                f"{self.context_length}; load the model with more cells",
                path=path,
            )


def checked_path(path: str | os.PathLike[str]) -> Path:
    """A path as `Path`; raises if it cannot be one of a file. The file system is not touched."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name or "\0" in name:
        raise wrong_value("path", path, "the path of a file")
    return Path(name)


def _checksum(fields: Mapping[str, str], tokens: Ints, positions: Ints) -> str:
    digest = sha256(json.dumps(fields, sort_keys=True).encode("ascii"))
    digest.update(tokens.astype("<i4").tobytes())
    digest.update(positions.astype("<i4").tobytes())
    return digest.hexdigest()
