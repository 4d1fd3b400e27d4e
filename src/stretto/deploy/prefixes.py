"""Prefixes as hashes of token blocks, and a replica's report of those that it holds.

    keys = chain(seed("smollm2"), tokens)      # one key for each whole block of 32 tokens
    report(state)["keys"]                      # of everything in a replica's prefix cache, 8 bytes each

A key stands for its block and all blocks before it, so two texts have the same keys up to the block in which
they differ. The seed keeps models, adapters and tenants apart, as the prefix cache itself does: a prefix that
one API key has filled is of no use to another one. Keys are routing hints: a wrong one costs a prefill.

A report is bounded. If a replica holds more blocks than fit, it reports every second, fourth, … of each
sequence, and the router sees the same prefixes in coarser steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from weakref import WeakKeyDictionary

import numpy as np

from stretto.engine.parked import Held
from stretto.llm import LLM
from stretto.server.http.state import ResponseStore, State

# Keys of what one replica alone has: stored responses, by their ids.


def saved_key(name: str) -> int:
    """The key of a stored response, by its id."""
    digest = blake2b(name.encode("utf-8", "replace"), digest_size=8, person=b"stretto saved").digest()
    return int.from_bytes(digest, "little")


def saved_keys(store: ResponseStore, most: int) -> list[int]:
    """The keys of the responses in a store, the latest of each caller first."""
    return [saved_key(name) for name in store.names(most)]


BLOCK_TOKENS = 32
KEY_BYTES = 8
MAX_KEYS = 2048  # in a report
MAX_BLOCKS = 8192  # of one text; what follows is not looked at
MAX_STRIDE = 64

Report = dict[str, object]


def seed(model: str, adapter: str = "", tenant: bytes = b"") -> bytes:
    """Where the chain of a text begins; `tenant` is that of an API key, where keys share nothing."""
    parts = (model.encode("utf-8", "replace"), adapter.encode("utf-8", "replace"), tenant)
    return _digest(b"".join(len(part).to_bytes(4, "little") + part for part in parts))


def hash_tenant(key: str) -> bytes:
    """A name for the holder of an API key: the same in all processes, and it does not give the key away."""
    return blake2b(key.encode("utf-8", "replace"), digest_size=16, person=b"stretto tenant").digest()


def chain(start: bytes, tokens: Sequence[object]) -> list[int]:
    """The keys of the whole blocks of a text.

    >>> a, b = chain(seed("m"), range(64)), chain(seed("m"), [*range(63), 0])
    >>> a[0] == b[0], a[1] == b[1]
    (True, False)
    """
    n = min(len(tokens) // BLOCK_TOKENS, MAX_BLOCKS)
    data = np.array(tokens[: n * BLOCK_TOKENS], np.int32).astype("<i4").tobytes()
    return block_keys(start, data, 4 * BLOCK_TOKENS)


def block_keys(start: bytes, data: bytes, block_bytes: int) -> list[int]:
    """The keys of the whole blocks of some bytes."""
    keys, last = [], start
    for end in range(block_bytes, min(len(data), MAX_BLOCKS * block_bytes) + 1, block_bytes):
        last = _digest(last + data[end - block_bytes : end])
        keys.append(int.from_bytes(last, "little"))
    return keys


def pack_keys(keys: Iterable[int]) -> bytes:
    """Keys as bytes, for a report."""
    return np.fromiter(keys, np.uint64).astype("<u8").tobytes()


def unpack_keys(data: object) -> list[int]:
    """The keys in a report; none where it holds something else."""
    if not isinstance(data, bytes) or len(data) % KEY_BYTES:
        return []
    return [int(key) for key in np.frombuffer(data[: MAX_KEYS * KEY_BYTES], "<u8").tolist()]


def limit_keys(chains: Iterable[Sequence[int]], most: int = MAX_KEYS) -> list[int]:
    """At most so many keys of several chains, the most important chain first.

    All of them if they fit; else those at every second block, every fourth, and so on. If even the coarsest
    are too many, the last chains are left out.
    """
    chains, stride = list(chains), 1
    while True:
        keys = dict.fromkeys(key for keys in chains for key in keys[stride - 1 :: stride])
        if len(keys) <= most or stride >= MAX_STRIDE:
            return list(keys)[:most]
        stride *= 2


class _Memo:
    """Chains of the sequences in the last report: most of them are in the next one too."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, int, int], list[int]] = {}

    def chains(self, held: Iterable[tuple[bytes, Held]]) -> list[list[int]]:
        """The chain of each sequence."""
        known: dict[tuple[bytes, int, int], list[int]] = {}
        found = []
        for start, one in held:
            key = (start, one.id, len(one.tokens))
            known[key] = self._known[key] if key in self._known else chain(start, one.tokens)
            found.append(known[key])
        self._known = known
        return found


_memos: WeakKeyDictionary[State, _Memo] = WeakKeyDictionary()


def report(state: State, max_keys: int = MAX_KEYS) -> Report:
    """What a router has to know of a replica. Thread-safe; it waits for the engine, so not for an event loop.

    - `running`, `waiting`: requests
    - `keys`: of the prefixes in the caches of all loaded models, as `unpack_keys` reads them
    - `saved`: keys of stored responses, which only this replica can go on with
    - `salted`: whether API keys share no prefixes, so that seeds have tenants
    - `models`: the file of each model that generates text, and its size
    """
    models = [served for served in state.registry.models.values() if isinstance(served.llm, LLM)]
    figures = {"running": 0, "waiting": 0}
    tenants = _tenants(state)
    held: list[tuple[bytes, Held]] = []
    for served in models:
        llm = served.llm
        if not isinstance(llm, LLM):
            continue  # unloaded meanwhile
        figures["running"] += llm.metrics.running
        figures["waiting"] += llm.metrics.waiting
        for one in llm.cache.held():
            if (tenant := tenants.get(one.salt or "")) is not None:
                held.append((seed(served.name, one.adapter or "", tenant), one))
    memo = _memos.setdefault(state, _Memo())
    return {
        **figures,
        "keys": pack_keys(limit_keys(memo.chains(held), max_keys)),
        "saved": pack_keys(saved_keys(state.responses, max_keys)),
        "salted": len(tenants) > 1,
        "models": {served.name: (str(served.path), served.facts["file_bytes"]) for served in models},
    }


def _tenants(state: State) -> dict[str, bytes]:
    """The tenants by the salts of their prompts; one without a name where all keys share."""
    settings, callers = state.settings, state.callers
    found = {callers.nobody.salt: b""}
    for key in settings.keys:
        salt = callers.find(b"Bearer " + key.encode()).salt
        if salt:
            found[salt] = hash_tenant(key)
    return found


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=KEY_BYTES).digest()
