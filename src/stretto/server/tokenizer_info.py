"""`/tokenizer_info`: what vLLM's clients read about a tokenizer, by the names of tokenizer_config.json."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from stretto.server.errors import Json, unsupported
from stretto.server.generation import begin
from stretto.server.served_model import ServedModel
from stretto.server.state import state_of
from stretto.tasks import TaskModel

router = APIRouter(tags=["vLLM"])


@router.get("/tokenizer_info")
async def tokenizer_info(
    request: Request,
    model: Annotated[
        str | None, Query(max_length=256, description="A model; without it, the first that generates.")
    ] = None,
) -> Response:
    """The special tokens, the chat template and the sizes of a model's tokenizer."""
    registry = state_of(request).registry
    served = registry.find(model or registry.first("generate"))
    verbs = served.facts["verbs"]
    generation = await begin(
        state_of(request), served.name, request, "generate" if "generate" in verbs else verbs[0]
    )
    try:
        return Json(_facts(generation.lease.llm, served))
    finally:
        generation.close()


def _facts(llm: Any, served: ServedModel) -> dict[str, Any]:
    if isinstance(llm, TaskModel):
        raise unsupported(f"{llm.name} has no tokenizer that can be shown", "model")
    tokenizer = llm.tokenizer
    specials = sorted(tokenizer.specials.items(), key=lambda one: one[1])
    named = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "unk_token": tokenizer.vocabulary.unknown_id,
    }
    return {
        "tokenizer_class": type(tokenizer).__name__,
        **{name: None if token is None else tokenizer.spelled(token) for name, token in named.items()},
        "add_bos_token": tokenizer.add_bos,
        "add_eos_token": tokenizer.add_eos,
        "additional_special_tokens": [text for text, _ in specials],
        "added_tokens_decoder": {str(token): {"content": text, "special": True} for text, token in specials},
        "model_max_length": llm.context_length,
        "vocab_size": tokenizer.n_vocab,
        "chat_template": served.facts["template"] or None,
    }
