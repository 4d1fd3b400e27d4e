"""Vectors of texts, for the endpoints of OpenAI and Ollama."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from stretto.server.generation.chat import encode_prompt
from stretto.server.generation.generation import Generation, lease_model, unless_gone
from stretto.server.http.errors import ApiError, field_error, unsupported
from stretto.server.http.served_model import ServedModel
from stretto.tasks import TaskModel

# Runs a verb of a model that does not generate, for a request: in its turn, in a thread, counted.

Value = TypeVar("Value")

Floats = NDArray[np.float32]
TASK_POOL = ThreadPoolExecutor(4, "stretto-server-task")


async def call(
    request: Request,
    name: str,
    verb: str,
    prepare: Callable[[Generation], Any],
    work: Callable[[Any, Any], Value],
    field: str,
) -> tuple[Value, dict[str, float]]:
    """The value of `work(model, prepared)` and its timings; `field` is what errors are about.

    `prepare` is a coroutine function that decodes the request's inputs and returns a list of them.
    """
    async with lease_model(request, name, field, verb=verb) as generation:
        inputs = await unless_gone(request, prepare(generation))
        value = await unless_gone(request, in_turn(generation, verb, inputs, work))
        return value, generation.spent()


async def in_turn(
    generation: Generation, verb: str, inputs: list[Any], work: Callable[[Any, Any], Value]
) -> Value:
    """Compute when the requests before it are done; a full queue is refused."""
    served, most = generation.lease.model, generation.max_queue
    if served.waiting >= most:
        raise ApiError(
            429, f"{most} requests wait for {served.name} already", code="queue_full", retry_after=1
        )
    served.waiting += 1
    try:
        async with served.turn:
            return await _computed(served, verb, len(inputs), lambda: work(generation.lease.llm, inputs))
    finally:
        served.waiting -= 1


async def _computed(served: ServedModel, verb: str, n: int, work: Callable[[], Value]) -> Value:
    """Run in a thread to its end, also if the client is gone: the model is not used by two at once."""
    task = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(TASK_POOL, work))
    with served.count_work(verb, n):
        try:
            return await asyncio.shield(task)
        finally:
            if not task.done():
                await asyncio.wait([task])


def write_vector(vector: Floats, form: str | None) -> list[float] | str:
    """A vector as a list of numbers, or in "base64" as float32."""
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


BATCH_TEXTS = 16  # embedded at a time; then the time limit is checked


@dataclass(frozen=True)
class Vectors:
    """What is asked for. Without `pooling` it is the model's own; `dimensions` keeps the first numbers."""

    pooling: Literal["mean", "cls", "last"] | None = None
    normalize: bool = True
    dimensions: int | None = None

    def cut(self, vectors: Floats) -> Floats:
        """The first numbers of each vector, of length 1 again."""
        size = vectors.shape[1]
        if self.dimensions is None or self.dimensions == size:
            return vectors
        if self.dimensions > size:
            raise field_error("dimensions", f"dimensions must be at most {size}")
        kept = vectors[:, : self.dimensions]
        if self.normalize:
            kept = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), np.float32(1e-12))
        return np.ascontiguousarray(kept, np.float32)


async def embed_texts(generation: Generation, texts: list[Any], how: Vectors) -> tuple[Floats, int]:
    """The vectors of texts, computed in batches, and their total number of tokens."""
    for index, text in enumerate(texts):
        if not text:
            where = "input" if len(texts) == 1 else f"input[{index}]"
            raise field_error(where, f"{where} is empty; leave it out")
    model: Any = generation.lease.llm
    if isinstance(model, TaskModel):
        if not all(isinstance(text, str) for text in texts):
            raise unsupported(f"{model.name} takes texts, not ids", "input")
        if how.pooling is not None:
            raise field_error("pooling", f"{model.name} has no choice of pooling")
        made = await in_turn(
            generation, "embed", texts, lambda model, texts: model.embed(texts, normalize=how.normalize)
        )
        return how.cut(np.asarray(made, np.float32)), 0
    with generation.lease.model.count_work("embed", len(texts)):
        vectors, n_tokens = await _batches(generation, model, texts, how)
    generation.note(prompt_tokens=n_tokens)
    return how.cut(vectors), n_tokens


async def _batches(generation: Generation, model: Any, texts: list[Any], how: Vectors) -> tuple[Floats, int]:
    """The engine's vectors: it has a queue of its own, and works on several requests at once."""
    options = {} if how.pooling is None else {"pooling": how.pooling}
    vectors: list[Floats] = []
    ids = await asyncio.to_thread(lambda: [encode_prompt(model, text) for text in texts])
    for start in range(0, len(ids), BATCH_TEXTS):
        _ = generation.left  # raises if there is no time left
        batch = ids[start : start + BATCH_TEXTS]
        vectors.append(await model.aembed(batch, normalize=how.normalize, **options))
    return np.concatenate(vectors), sum(map(len, ids))
