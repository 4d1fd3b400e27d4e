"""Endpoints under paths of others: llama-server's, and those that hosting services ask of a container.

llama-server has OpenAI's endpoints without `/v1` too. SageMaker's `/ping` and `/invocations` and Vertex AI's
`/predict` take the bodies of OpenAI's endpoints.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field, RootModel
from starlette.responses import Response

from stretto.server.generation.chat import continue_last_answer
from stretto.server.generation.fields import Body, ForModel
from stretto.server.generation.options import check_at_most
from stretto.server.generation.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from stretto.server.http.bodies import make_router, validate
from stretto.server.http.errors import Json, field_error
from stretto.server.http.state import get_state
from stretto.server.openai import endpoints, responses
from stretto.server.own import tasks

llama_router = make_router("llama-server")
router = make_router("Hosting")

llama_router.get("/models")(endpoints.models)
llama_router.post("/responses")(responses.create)
for _path in ("/rerank", "/v1/reranking", "/v2/rerank"):
    llama_router.post(_path)(tasks.rerank)


@llama_router.post("/chat/completions")
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation; a last message of the assistant is continued."""
    return await endpoints.chat(continue_last_answer(body), request)


FORMAT = "@requestFormat"  # of an instance: what its other fields are
Endpoint = Callable[[Any, Request], Awaitable[Response]]
KINDS: dict[str, tuple[type[ForModel], Endpoint]] = {  # by the field that tells a body's endpoint
    "messages": (ChatRequest, endpoints.chat),
    "prompt": (CompletionRequest, endpoints.completions),
    "input": (EmbeddingRequest, endpoints.embeddings),
    "documents": (tasks.RerankRequest, tasks.rerank),
}
FORMATS = {
    "chatCompletions": "messages",
    "completions": "prompt",
    "embeddings": "input",
    "rerank": "documents",
}


class Invocation(RootModel[dict[str, Any]]):
    """`POST /invocations`: the body of a chat, a completion, embeddings or a ranking."""


class Instances(Body):
    """`POST /predict`: bodies in a list."""

    instances: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=64)] = Field(
        description="Bodies of OpenAI's endpoints; @requestFormat says which: chatCompletions by default."
    )
    parameters: dict[str, Any] | None = Field(None, description="Fields of all of them.")


@router.get("/ping")
async def ping() -> Response:
    """Alive."""
    return Json({})


@router.post("/invocations")
async def invocations(body: Invocation, request: Request) -> Response:
    """Answer as the endpoint does whose body this is."""
    kind = next((name for name in KINDS if name in body.root), None)
    if kind is None:
        raise field_error("body", f"the body has none of {', '.join(KINDS)}", "missing_field")
    return await _called(kind, body.root, request)


@router.post("/predict")
async def predict(body: Instances, request: Request) -> Response:
    """Answer some bodies, one after the other."""
    check_at_most("instances", len(body.instances), get_state(request).settings.limits.prompts)
    predictions = []
    for number, instance in enumerate(body.instances):
        fields = {**(body.parameters or {}), **instance}
        wanted = fields.pop(FORMAT, "chatCompletions")
        if not isinstance(wanted, str) or wanted not in FORMATS or fields.get("stream"):
            raise field_error(
                f"instances[{number}]",
                f"instances[{number}] needs a {FORMAT} of {', '.join(FORMATS)}, and no stream",
            )
        answer = await _called(FORMATS[wanted], fields, request)
        predictions.append(json.loads(bytes(answer.body)))
    return Json({"predictions": predictions})


async def _called(kind: str, fields: dict[str, Any], request: Request) -> Response:
    schema, endpoint = KINDS[kind]
    body = validate(schema, fields)
    if not body.model:
        body.model = get_state(request).registry.first(body.verb)
    return await endpoint(body, request)
