"""`/embedding` and `/embeddings`: llama-server's own forms of vectors, for its clients."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, ClassVar, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from stretto.server.answers import long_json
from stretto.server.embedding import Floats, Vectors, embedded
from stretto.server.errors import ApiError, translate, unsupported
from stretto.server.generation import Generation, begin, unless_gone
from stretto.server.openai import plain_text, prompts_of
from stretto.server.options import check_prompts
from stretto.server.prompt_ids import ids_of
from stretto.server.schema_base import ForModel
from stretto.server.schemas import EmbeddingInput
from stretto.server.state import state_of
from stretto.tasks import TaskModel

MAX_NUMBERS = 1 << 22  # of an answer with the vectors of all tokens

router = APIRouter(tags=["llama-server"])


class NativeEmbedding(ForModel):
    """`POST /embedding` and `/embeddings`."""

    verb: ClassVar[str] = "embed"

    input: EmbeddingInput | None = Field(None, description="The texts.")
    content: EmbeddingInput | None = Field(None, description="The texts, by their older name.")
    pooling: Literal["none", "mean", "cls", "last"] | None = Field(
        None, description='How states become a vector; "none": a vector for each token, as it is.'
    )
    embd_normalize: Literal[-1, 2] = Field(2, description="2: L2-normalise the vectors; -1: as they are.")
    encoding_format: Literal["float", "base64"] | None = "float"


@router.post("/embedding")
@router.post("/embeddings")
async def embedding(body: NativeEmbedding, request: Request) -> Response:
    """The vectors of texts, each a list of one; with `pooling` "none" of as many as there are tokens."""
    given = body.input if body.input is not None else body.content
    if given is None:
        raise ApiError(400, "input: there is no text to embed", param="input", code="missing_field")
    state = state_of(request)
    texts = [plain_text(one) for one in prompts_of(given)]
    check_prompts("input", texts, state.settings.limits)
    generation = await begin(state, body.model, request, "embed")
    try:
        found = await unless_gone(request, _vectors(generation, texts, body))
    except Exception as error:
        raise translate(error, "input") from error
    finally:
        generation.close()
    answer = [{"index": index, "embedding": _written(rows, body)} for index, rows in enumerate(found)]
    return await long_json(answer, sum(rows.size for rows in found))


async def _vectors(generation: Generation, texts: list[Any], body: NativeEmbedding) -> list[Floats]:
    """float32[1, n] of each text, or float32[n_tokens, n]."""
    if body.pooling != "none":
        vectors, _ = await embedded(generation, texts, Vectors(body.pooling, body.embd_normalize == 2))
        return [vector[np.newaxis] for vector in vectors]
    model: Any = generation.lease.llm
    if isinstance(model, TaskModel):
        raise unsupported(f"{model.name} has no vectors of tokens", "pooling")
    ids = await asyncio.to_thread(lambda: [ids_of(model, text) for text in texts])
    numbers = sum(map(len, ids)) * model.spec.n_embd
    if numbers > MAX_NUMBERS:
        raise ApiError(
            400,
            f"input: vectors of all tokens are {numbers:,} numbers; at most {MAX_NUMBERS:,} are sent",
            param="input",
            code="invalid_value",
        )
    with generation.lease.model.counted("embed", len(texts)):
        return list(await model.atoken_vectors(ids))


def _written(rows: Floats, body: NativeEmbedding) -> list[Any]:
    if body.encoding_format == "base64":
        return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
    return [[float(number) for number in row] for row in rows]
