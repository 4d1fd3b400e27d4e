"""Vectors for texts: the final hidden states of their tokens, pooled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.engine.sequence import Sequence
from stretto.errors import ContextOverflow, InvalidRequest
from stretto.sampling.rng import RandomStream

if TYPE_CHECKING:
    from stretto.engine.engine import Engine

Floats = NDArray[np.float32]
Pooling = Literal["mean", "last"]


def embed(engine: Engine, texts: list[list[int]], pooling: Pooling, normalize: bool) -> Floats:
    """float32[n_texts, n_embd]: the mean of a text's states, or its last one, made one long if `normalize`.

    Texts share passes as far as a pass has room; others who use the engine come between passes.
    """
    if pooling not in ("mean", "last"):
        raise InvalidRequest(f"pooling must be 'mean' or 'last', not {pooling!r}")
    if not isinstance(normalize, bool):
        raise InvalidRequest(f"normalize must be True or False, not {normalize!r}")
    engine.backend.capabilities.require("hidden", engine.backend.name)
    for number, text in enumerate(texts):
        if not text:
            raise InvalidRequest(f"text {number} is empty; give at least one token")
        if len(text) > engine.context_length:
            raise ContextOverflow(
                f"text {number} has {len(text)} tokens and the context {engine.context_length}; shorten it"
            )
    pooled = np.zeros((len(texts), engine.spec.n_embd), np.float64)
    for group in _groups([len(text) for text in texts], engine.chunk):
        for number, rows in _states(engine, {number: texts[number] for number in group}):
            if pooling == "mean":
                pooled[number] += rows.sum(0, dtype=np.float64) / len(texts[number])
            else:
                pooled[number] = rows[-1]
    if normalize:
        pooled /= np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
    return pooled.astype(np.float32)


def _groups(lengths: list[int], room: int) -> Iterator[list[int]]:
    """Texts that fit into one pass together, by number; one that fits into none is alone."""
    group: list[int] = []
    for number, length in enumerate(lengths):
        if group and length + sum(lengths[other] for other in group) > room:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _states(engine: Engine, texts: dict[int, list[int]]) -> Iterator[tuple[int, Floats]]:
    """(number, float32[n, n_embd]) for each text of a group, a long one in pieces."""
    with ExitStack() as stack:
        homes = {number: stack.enter_context(Sequence(engine, (), RandomStream(0))) for number in texts}
        for home in homes.values():
            home.running = True  # nobody else may change its cells meanwhile
        for start in range(0, max(map(len, texts.values())), engine.chunk):
            batch, pieces = Batch(), []
            for number, text in texts.items():
                piece = text[start : start + engine.chunk]
                for position, token in enumerate(piece, start):
                    batch.add(token, position, (homes[number].id,), logits=True)
                pieces.append((number, len(piece)))
            rows, done = engine.forward(batch, hidden=True), 0
            for number, n in pieces:
                yield number, rows[done : done + n]
                done += n
