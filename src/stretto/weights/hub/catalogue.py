"""Well-known models by short name, on the Hugging Face Hub: `qwen3-0.6b`, `gemma4-e2b`, `gpt-oss-20b`.

    CATALOGUE["qwen3-0.6b"].licence
    CATALOGUE["qwen3-0.6b"].sizes()             # files and sizes, asked from the Hub
    best_fit(free_memory(), bandwidth=20e9)     # what to chat with on this machine

The data file has repositories, licences and sources. Sizes are not in it: they are read from the Hub when
they are asked for. Models of the package index are in catalog.py, with sizes and hashes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.errors import PullError
from stretto.weights.hub.listing import read_listing
from stretto.weights.hub.names import Reference
from stretto.weights.hub.web import Web


@dataclass(frozen=True)
class Size:
    """A file of a repository, or all parts of a split one: its tag, such as Q4_K_M, its name, its bytes."""

    tag: str
    file: str
    nbytes: int
    is_chosen: bool = False  # the one that is fetched by the model's name


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue. `files` is the tag of the file that is fetched, or the nearest there is."""

    name: str
    summary: str
    architecture: str
    repo: str
    files: str
    source: str
    licence: str
    licence_url: str

    @property
    def reference(self) -> Reference:
        """Its repository, and the tag that is wanted."""
        return Reference(self.repo, tag=self.files)

    def sizes(self) -> tuple[Size, ...] | None:
        """The repository's files, asked from the Hub now; None if it cannot be reached, or has none."""
        try:
            listing = read_listing(Web.hub(), self.reference)
            chosen = listing.choose(self.files, exact=False)
        except PullError:
            return None
        return tuple(
            Size(one.tag, one.files[0].path, one.nbytes, one == chosen)
            for one in listing.choices
            if one.nbytes is not None
        )


def _read() -> tuple[dict[str, Entry], tuple[str, ...]]:
    data: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_bytes())
    return {entry["name"]: Entry(**entry) for entry in data["models"]}, tuple(data["chat"])


CATALOGUE: Mapping[str, Entry]
CHAT: tuple[str, ...]  # models to begin with, from the smallest to the best
CATALOGUE, CHAT = _read()


def best_fit(memory: int | None = None, bandwidth: float | None = None) -> Entry | None:
    """The best model to chat with in `memory` bytes, read at `bandwidth` bytes/s; None if none is known.

    Sizes come from the Hub: without it, or if nothing fits, there is no answer.
    """
    return None
