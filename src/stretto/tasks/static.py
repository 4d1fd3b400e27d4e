"""Static embeddings: a vector for each token, whose mean is the vector of a text. No ONNX Runtime is needed.

vectors = stretto.load("wordllama").embed(["a cat", "a dog"])       # float32[2, 256]
stretto.load("wordllama").rerank("pets", ["a cat", "a car"])[0].text
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest, ModelError, wrong_value
from stretto.tasks.model import Source, TaskModel
from stretto.tasks.results import Ranking

TABLE, TOKENIZER = "l2_supercat_256.safetensors", "l2_supercat_tokenizer_config.json"
_TENSOR = "embedding.weight"
_BATCH_TEXTS = 256
_CHUNK_TOKENS = 8192  # rows of the table that are gathered at once

Vectors = NDArray[np.float32]


class StaticEmbeddings(TaskModel):
    """Embeds texts by their tokens alone, without order: very fast, and good enough to find and to sort."""

    verbs = ("embed", "rerank")
    takes = "text"

    def __init__(self, source: Source, table: Vectors, tokenizer: Any) -> None:
        super().__init__(source)
        self._table = table  # float32[n_vocab, dimensions]
        self._tokenizer = tokenizer

    def embed(
        self, texts: Sequence[str] | str, *, normalize: bool = True, dimensions: int | None = None
    ) -> Vectors:
        """float32[n, size]: a vector for each text; a single text is a list of one.

        `dimensions` keeps the first numbers only, for which the table was trained. With `normalize` vectors
        have length 1, so that their dot product is the cosine between them; a text without tokens has the
        vector zero.
        """
        checked = _checked([texts] if isinstance(texts, str) else texts, "texts")
        table = self._table[:, : self._size(dimensions)]
        vectors = np.zeros((len(checked), table.shape[1]), np.float32)
        for start in range(0, len(checked), _BATCH_TEXTS):
            batch = checked[start : start + _BATCH_TEXTS]
            encodings = self._tokenizer.encode_batch(batch, add_special_tokens=False)
            for number, encoding in enumerate(encodings, start):
                vectors[number] = _mean(table, encoding.ids)
        if normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors /= np.where(lengths > 0, lengths, 1)
        return vectors

    def rerank(self, query: str, documents: Sequence[str], *, top: int | None = None) -> Ranking:
        """The documents by the cosine between their vectors and the query's, best first; at most `top`."""
        if not isinstance(query, str):
            raise InvalidRequest(f"query must be a text, not {type(query).__name__}", param="query")
        if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
            raise InvalidRequest(f"top must be at least 1, not {top!r}", param="top", value=top)
        checked = _checked(documents, "documents")
        scores = self.embed(checked) @ self.embed([query])[0]
        return Ranking.of(checked, scores, top, model=self.name, license=self.license)

    def _size(self, dimensions: int | None) -> int:
        most = int(self._table.shape[1])
        if dimensions is None:
            return most
        if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= most:
            raise wrong_value("dimensions", dimensions, f"from 1 to {most}")
        return dimensions


def _mean(table: Vectors, ids: list[int]) -> Vectors:
    """The mean of the rows of tokens."""
    total = np.zeros(table.shape[1], np.float32)
    for start in range(0, len(ids), _CHUNK_TOKENS):
        total += table[ids[start : start + _CHUNK_TOKENS]].sum(axis=0, dtype=np.float32)
    return total / np.float32(max(len(ids), 1))


def open_task(source: Source, device: str, threads: int | None) -> StaticEmbeddings:
    """Open the table and the tokenizer of the bundle `wordllama`."""
    import tokenizers

    if device not in ("auto", "cpu"):
        raise InvalidRequest(
            f"{source.name} is a table on the CPU, not on {device!r}", param="device", value=device
        )
    tokenizer = tokenizers.Tokenizer.from_file(str(source.files[TOKENIZER]))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    table = _read_table(source.files[TABLE])
    if tokenizer.get_vocab_size() > len(table):
        raise ModelError(
            f"{len(table)} vectors for {tokenizer.get_vocab_size()} tokens", path=source.files[TABLE]
        )
    return StaticEmbeddings(source, table, tokenizer)


def _read_table(path: Path) -> Vectors:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            table = file.get_tensor(_TENSOR)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"this is no table of embeddings: {error}", path=path, field=_TENSOR) from None
    if table.ndim != 2 or table.dtype.kind != "f":
        raise ModelError(f"{table.dtype}{list(table.shape)} is no table of vectors", path=path, field=_TENSOR)
    return np.ascontiguousarray(table, np.float32)


def _checked(texts: Any, name: str) -> list[str]:
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{name} must be a list of texts", param=name)
    return list(texts)
