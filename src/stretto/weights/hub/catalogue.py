"""Well-known models by short name, on the Hugging Face Hub: `qwen3-0.6b`, `gemma4-e2b`, `gpt-oss-20b`.

    CATALOGUE["qwen3-0.6b"].licence
    CATALOGUE["qwen3-0.6b"].sizes()             # files and sizes, asked from the Hub
    best_fit(free_memory(), bandwidth=20e9)     # what to chat with on this machine

The data file has repositories, licences and sources. Sizes are read from the Hub when they are asked for;
without it `about_nbytes` is an estimate. Models of the package index are in index_models.py, with sizes and
hashes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.errors import PullError
from stretto.weights.hub.index_models import CHATS, NO_DEFAULTS, ModelDefaults
from stretto.weights.hub.names import Reference

CONNECTIONS = 8
WORKING_BYTES = 512 << 20  # for a KV cache, activations, threads and Python
_PARAMETERS = re.compile(r"-(\d+(?:\.\d+)?)([bm])(?![a-z])")
_BITS = {"Q8_0": 8.5, "MXFP4": 4.6}
LEAST_TOKENS_PER_SECOND = 8.0  # a little faster than people read


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
    is_mixture: bool = False  # of experts: a token reads a part of the weights
    billions: float | None = None  # of parameters, where the name does not say it
    verbs: tuple[str, ...] = CHATS
    extra: str = ""
    defaults: ModelDefaults = NO_DEFAULTS

    @property
    def about_nbytes(self) -> int | None:
        """About how large its file is: the parameters that its name states, in its format; None if unknown.

        >>> CATALOGUE["llama3.1-8b"].about_nbytes
        4987500000
        """
        billions = self.billions
        if billions is None and (match := _PARAMETERS.search(self.name)):
            billions = float(match[1]) / (1000 if match[2] == "m" else 1)
        if billions is None:
            return None
        # Q4_K_M keeps embeddings in more bits, which small models mostly consist of: within a tenth of the
        # three such files in index_models.py, of 0.27, 0.5 and 1.5 billion parameters.
        bits = _BITS.get(self.files) or min(4.8 + 1.5 / billions, 7.9)
        return int(billions * 1e9 * bits / 8)

    @property
    def reference(self) -> Reference:
        """Its repository, and the tag that is wanted."""
        return Reference(self.repo, tag=self.files)

    def sizes(self) -> tuple[Size, ...] | None:
        """The repository's files, asked from the Hub now; None if it cannot be reached, or has none."""
        try:
            return self._ask()
        except PullError:
            return None

    def _ask(self) -> tuple[Size, ...] | None:
        from stretto.weights.hub.repository import read_listing
        from stretto.weights.hub.web import Unreachable, Web

        try:
            listing = read_listing(Web.hub(), self.reference)
            chosen = listing.choose(self.files, exact=False)
        except Unreachable:
            raise
        except PullError:
            return None
        return tuple(
            Size(one.tag, one.files[0].path, one.nbytes, one == chosen)
            for one in listing.choices
            if one.nbytes is not None
        )


def _read() -> tuple[dict[str, Entry], tuple[str, ...]]:
    data: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_bytes())
    embedding = set(data["embedding"])
    verbs = {True: ("embed", "rerank"), False: CHATS}
    return {
        entry["name"]: Entry(**entry, verbs=verbs[entry["name"] in embedding]) for entry in data["models"]
    }, tuple(data["chat"])


CATALOGUE: Mapping[str, Entry]
CHAT: tuple[str, ...]  # models to begin with, from the smallest to the best
CATALOGUE, CHAT = _read()


def ask_sizes(entries: Iterable[Entry]) -> dict[str, int | None]:
    """The bytes of each model's file by name, asked from the Hub, several at once; None where unknown."""
    waiting = list(entries)
    sizes: dict[str, int | None] = dict.fromkeys(entry.name for entry in waiting)
    try:
        for entry in waiting[:1]:  # without a network, one failure is enough
            sizes[entry.name] = _chosen(entry._ask())
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            found = pool.map(Entry.sizes, waiting[1:])
            sizes |= {entry.name: _chosen(one) for entry, one in zip(waiting[1:], found, strict=True)}
    except PullError:
        pass
    return sizes


def fits(nbytes: int, memory: int) -> bool:
    """Whether a model of that size, with a KV cache and room to work in, fits into memory."""
    return nbytes * 11 // 10 + WORKING_BYTES <= memory


def best_fit(memory: int | None = None, bandwidth: float | None = None) -> Entry | None:
    """The best model to chat with in `memory` bytes, read at `bandwidth` bytes/s.

    Sizes come from the Hub: None without it, or if nothing fits. Of unknown memory it is the smallest model.
    """
    for name in reversed(CHAT) if memory is not None else CHAT[:1]:
        entry = CATALOGUE[name]
        try:
            nbytes = _chosen(entry._ask())
        except PullError:
            return None
        if nbytes is None or (memory is not None and not fits(nbytes, memory)):
            continue
        if bandwidth is None or entry.is_mixture or bandwidth / nbytes >= LEAST_TOKENS_PER_SECOND:
            return entry
    return None


def _chosen(sizes: tuple[Size, ...] | None) -> int | None:
    return next((size.nbytes for size in sizes or () if size.is_chosen), None)
