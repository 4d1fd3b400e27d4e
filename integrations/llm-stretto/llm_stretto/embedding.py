"""Models that make vectors, for `llm embed` and `llm similar`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llm.models import EmbeddingModel

from llm_stretto.answering import explained
from llm_stretto.names import Named


class StrettoEmbedding(EmbeddingModel):
    """A model of Stretto that makes vectors of texts."""

    batch_size = 32

    def __init__(self, named: Named) -> None:
        self.named = named
        self.model_id = named.id

    def embed_batch(self, items: Iterable[str | bytes], *, key: str | None = None) -> Iterator[list[float]]:
        """A vector for each text."""
        with explained():
            for vector in self.named.load().embed([str(item) for item in items]):
                yield [float(number) for number in vector]
