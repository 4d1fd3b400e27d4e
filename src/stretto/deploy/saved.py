"""Keys of what one replica alone has: stored responses, by their ids."""

from __future__ import annotations

from hashlib import blake2b

from stretto.server.response_store import ResponseStore


def saved_key(name: str) -> int:
    """The key of a stored response, by its id."""
    digest = blake2b(name.encode("utf-8", "replace"), digest_size=8, person=b"stretto saved").digest()
    return int.from_bytes(digest, "little")


def saved_keys(store: ResponseStore, most: int) -> list[int]:
    """The keys of the responses in a store, the latest of each caller first."""
    return [saved_key(name) for name in store.names(most)]
