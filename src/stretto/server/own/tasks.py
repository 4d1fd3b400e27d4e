"""`/v1/rerank` and `/stretto/classify`, `detect`, `segment`, `read`: models that do not generate."""

from __future__ import annotations

import asyncio
import base64
import binascii
from secrets import token_hex
from typing import Annotated, Any, ClassVar

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from stretto.server.generation.fields import Body, ForModel, Name, Number, Text
from stretto.server.generation.generation import Generation
from stretto.server.generation.images import from_url
from stretto.server.generation.options import check_at_most, check_prompts
from stretto.server.generation.vectors import call
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import Json, field_error
from stretto.server.http.state import get_state
from stretto.tasks import TaskModel

router = make_router("Tasks")

Url = Annotated[str, Field(min_length=1, max_length=1 << 26)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=1024)]
Urls = Annotated[list[Url], Field(min_length=1, max_length=64)]
Count = Annotated[int, Field(ge=1, le=1000)]
COHERE_UNIT = 100  # documents of a search unit, which is what Cohere's clients expect to be told
Share = Annotated[Number, Field(ge=0, le=1)]


class Document(Body):
    """A document as Cohere's clients send it."""

    text: Text


class RerankRequest(ForModel):
    """`POST /v1/rerank`, as Jina and Cohere have it."""

    verb: ClassVar[str] = "rerank"

    query: Text
    documents: Annotated[list[Text | Document], Field(min_length=1, max_length=1024)] | None = None
    texts: Texts | None = Field(None, description="As documents, of TEI's clients; the answer is a list.")
    top_n: Count | None = Field(None, description="How many of the best are returned; all, if not given.")
    return_documents: bool = Field(False, description="Whether results carry their texts.")


class ClassifyRequest(Body):
    """`POST /stretto/classify`: texts, images or the bytes of files, as the model takes them."""

    model: Name
    input: Text | Texts | None = Field(None, description="Texts.")
    image: Url | Urls | None = Field(None, description="Images as data: URLs.")
    data: Url | Urls | None = Field(None, description="Bytes of files, in base64.")
    top: Count = Field(5, description="How many labels are returned.")


class ImageRequest(Body):
    """`POST /stretto/segment` and `/stretto/read`."""

    model: Name
    image: Url | Urls = Field(description="Images as data: URLs.")


class DetectRequest(ImageRequest):
    """`POST /stretto/detect`."""

    threshold: Share | None = Field(None, description="The least score; by default the model's own.")


@router.post("/v1/rerank")
async def rerank(body: RerankRequest, request: Request) -> Response:
    """Sort documents by how well they answer a query."""
    given = body.documents if body.texts is None else body.texts
    field = "documents" if body.texts is None else "texts"
    if given is None or (body.documents is not None and body.texts is not None):
        raise field_error("documents", "give documents, or texts", "missing_field")
    texts = [one if isinstance(one, str) else one.text for one in given]
    check_prompts(field, [body.query, *texts], get_state(request).settings.limits, most=1 + len(texts))

    async def prepare(generation: Generation) -> list[str]:
        return texts

    ranking, timings = await call(
        request,
        body.model,
        "rerank",
        prepare,
        lambda model, documents: model.rerank(body.query, documents, top=body.top_n),
        field,
    )
    if body.texts is not None:
        return Json([{"index": item.index, "score": item.score} for item in ranking])
    results = [
        {
            "index": item.index,
            "relevance_score": item.score,
            **({"document": {"text": item.text}} if body.return_documents else {}),
        }
        for item in ranking
    ]
    n: int = ranking.n_tokens
    return Json(
        {
            "id": f"rerank-{token_hex(12)}",
            "model": body.model,
            "object": "list",
            "results": results,
            "usage": {"prompt_tokens": n, "total_tokens": n},
            "meta": {
                "billed_units": {"search_units": -(-len(texts) // COHERE_UNIT)},
                "tokens": {"input_tokens": n},
            },
            "timings": timings,
        }
    )


@router.post("/stretto/classify")
async def classify(body: ClassifyRequest, request: Request) -> Response:
    """The labels of texts, images or files."""
    given = [name for name in ("input", "image", "data") if getattr(body, name) is not None]
    if len(given) != 1:
        raise field_error(given[-1] if given else "input", "give one of input, image and data")
    field = given[0]
    return await _each(request, body.model, "classify", field, getattr(body, field), top=body.top)


@router.post("/stretto/detect")
async def detect(body: DetectRequest, request: Request) -> Response:
    """The objects in images."""
    options = {} if body.threshold is None else {"threshold": body.threshold}
    return await _each(request, body.model, "detect", "image", body.image, **options)


@router.post("/stretto/segment")
async def segment(body: ImageRequest, request: Request) -> Response:
    """The foreground of images."""
    return await _each(request, body.model, "segment", "image", body.image)


@router.post("/stretto/read")
async def read(body: ImageRequest, request: Request) -> Response:
    """The text in images."""
    return await _each(request, body.model, "read", "image", body.image)


async def _each(
    request: Request, name: str, verb: str, field: str, given: str | list[str], **options: Any
) -> Response:
    """An answer with a result of the model's verb for each input, which a field has."""
    settings = get_state(request).settings
    inputs = [given] if isinstance(given, str) else given

    async def prepare(generation: Generation) -> list[Any]:
        if field == "image":
            check_at_most("image", len(inputs), settings.limits.images)
            generation.take_images(len(inputs))
            return [await from_url(url, "image", settings) for url in inputs]
        if field == "data":
            return await asyncio.to_thread(lambda: [_bytes(text) for text in inputs])
        _require_texts(generation)
        check_prompts(field, inputs, settings.limits)
        return list(inputs)

    def work(model: Any, ready: list[Any]) -> Any:
        return getattr(model, verb)(ready, **options)

    results, timings = await call(request, name, verb, prepare, work, field)
    data = await asyncio.to_thread(lambda: [result.to_dict() for result in results])
    return Json({"model": name, "object": "list", "data": data, "timings": timings})


def _require_texts(generation: Generation) -> None:
    """Refuse texts for other models: to these a string is a path, and clients must not name files here."""
    model: Any = generation.lease.llm
    if isinstance(model, TaskModel) and model.takes != "text":
        field = "image" if model.takes == "image" else "data"
        raise field_error("input", f"{model.name} takes no texts; give {field}")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise field_error("data", "data: this is not base64") from None
