"""`/v2/embed`: vectors of texts, as Cohere's clients ask for them. Ranks are in `tasks.py`."""

from __future__ import annotations

import asyncio
from secrets import token_hex
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from stretto.server.generation.answer import long_json
from stretto.server.generation.chat import encode_prompt, rename_fields
from stretto.server.generation.fields import NEUTRAL, Body, ForModel, Text
from stretto.server.generation.generation import Generation, lease_model, unless_gone
from stretto.server.generation.options import check_prompts
from stretto.server.generation.requests import TextPart
from stretto.server.generation.vectors import Floats, Vectors, embed_texts, write_vector
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import field_error, unsupported
from stretto.server.http.state import get_state
from stretto.tasks import TaskModel
from stretto.text.tokenizer import Tokenizer

MAX_TEXTS = 96  # of Cohere's own endpoint, which clients fill

router = make_router("Cohere")


class EmbedInput(Body):
    """A text in parts, which are joined by line breaks."""

    content: Annotated[list[TextPart], Field(min_length=1, max_length=64)] = Field(
        description="Parts of the text; images have no vectors here."
    )


class CohereEmbedRequest(ForModel):
    """`POST /v2/embed`: `texts` or `inputs`."""

    verb: ClassVar[str] = "embed"

    texts: Annotated[list[Text], Field(min_length=1, max_length=1024)] | None = Field(
        None, description="The texts."
    )
    inputs: Annotated[list[EmbedInput], Field(min_length=1, max_length=1024)] | None = Field(
        None, description="The texts, in parts."
    )
    input_type: Literal["search_document", "search_query", "classification", "clustering"] | None = Field(
        None, description=f"{NEUTRAL} A prefix that a model wants before queries belongs to the text."
    )
    embedding_types: (
        Annotated[
            list[Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]],
            Field(min_length=1, max_length=6),
        ]
        | None
    ) = Field(
        None,
        description="The forms of each vector: float (the default), base64 of float32, or the signs as bits "
        "(binary: as signed bytes, ubinary: unsigned). int8 and uint8 are refused.",
    )
    output_dimension: Annotated[int, Field(ge=1, lt=1 << 31)] | None = Field(
        None, description="Keep the first numbers of a vector only, for models that were trained for it."
    )
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = Field(
        None, description="Cut each text to so many tokens."
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        "END", description="Where a text that is too long loses tokens; NONE: it is refused."
    )
    priority: Annotated[int, Field(ge=0, le=999, description=NEUTRAL)] | None = None


@router.post("/v2/embed")
async def embed(body: CohereEmbedRequest, request: Request) -> Response:
    """A vector for each text, in the forms that are asked for."""
    state = get_state(request)
    if body.texts is not None and body.inputs is not None:
        raise field_error("inputs", "texts and inputs both hold the texts; give one")
    if body.texts is None and body.inputs is None:
        raise field_error("texts", "texts is missing: a list of texts; or inputs", "missing_field")
    field = "texts" if body.texts is not None else "inputs"
    texts = body.texts or ["\n".join(part.text for part in one.content) for one in body.inputs or ()]
    forms: list[str] = list(dict.fromkeys(body.embedding_types or ("float",)))
    if unclear := {"int8", "uint8"}.intersection(forms):
        raise unsupported(
            f"embedding_types: the scale of Cohere's {min(unclear)} is not published; ask for float, and "
            "round as your index needs it",
            "embedding_types",
        )
    check_prompts(field, texts, state.settings.limits, most=max(MAX_TEXTS, state.settings.limits.prompts))
    async with lease_model(request, body.model, verb="embed") as generation:
        with rename_fields({"dimensions": "output_dimension"}, field):
            vectors, n_tokens = await unless_gone(request, _vectors(generation, texts, body))
    answer = {
        "id": f"embed-{token_hex(12)}",
        "embeddings": {form: _written(vectors, form) for form in forms},
        "texts": texts,
        "response_type": "embeddings_by_type",
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": n_tokens}},
        "timings": generation.spent(),
    }
    return await long_json(answer, vectors.size * len(forms))


async def _vectors(generation: Generation, texts: list[str], body: CohereEmbedRequest) -> tuple[Floats, int]:
    """float32[n, size], and the number of tokens."""
    model: Any = generation.lease.llm
    prompts: list[Any] = list(texts)
    if not isinstance(model, TaskModel):
        prompts = await asyncio.to_thread(lambda: [_cut(model, text, body) for text in texts])
    elif body.max_tokens is not None:
        raise unsupported(f"{model.name} reads whole texts; leave max_tokens out", "max_tokens")
    return await embed_texts(generation, prompts, Vectors(dimensions=body.output_dimension))


def _cut(model: Any, text: str, body: CohereEmbedRequest) -> list[int]:
    """The tokens of a text, those beyond the limit left out; special tokens around it stay."""
    ids = encode_prompt(model, text)
    most = model.context_length if body.truncate != "NONE" else len(ids)
    most = min(most, body.max_tokens or most)
    if len(ids) <= most:
        return ids
    before, after = _around(model.tokenizer, ids)
    room = max(1, most - before - after)
    inside = ids[before : len(ids) - after]
    kept = inside[-room:] if body.truncate == "START" else inside[:room]
    return [*ids[:before], *kept, *ids[len(ids) - after :]]


def _around(tokenizer: Tokenizer, ids: list[int]) -> tuple[int, int]:
    """How many special tokens stand before and behind the text."""
    first, last = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    before = len(first) if tokenizer.add_bos and ids[: len(first)] == first else 0
    after = len(last) if tokenizer.add_eos and last and ids[-len(last) :] == last else 0
    return before, after


def _written(vectors: Floats, form: str) -> list[Any]:
    """The vectors in one form."""
    if form in ("base64", "float"):
        return [write_vector(vector, form) for vector in vectors]
    if vectors.shape[1] % 8:
        raise field_error(
            "embedding_types",
            f"embedding_types: {form} packs 8 numbers into a byte, and vectors have {vectors.shape[1]}; "
            "give an output_dimension that is a multiple of 8",
        )
    packed = np.packbits(vectors > 0, axis=1).astype(np.int16)  # uint8[n, size / 8], the first number on top
    rows = packed if form == "ubinary" else packed - 128
    return [row.tolist() for row in rows]
