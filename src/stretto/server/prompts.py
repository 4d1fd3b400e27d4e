"""Prompts of `/v1/completions` that are more than a text or a list of ids: mixtures, and gaps to fill."""

from __future__ import annotations

from typing import Any

from stretto.llm import LLM
from stretto.server.errors import ApiError, unsupported
from stretto.server.options import check_prompts
from stretto.server.schemas import CompletionRequest
from stretto.server.settings import RequestLimits
from stretto.text.infill import infill_prompt


def is_mixed(prompt: Any) -> bool:
    """Whether a prompt is a list of texts and ids."""
    if not isinstance(prompt, list):
        return False
    kinds = set(map(type, prompt))
    return kinds == {int, str}


def check_suffix(body: CompletionRequest, prompts: list[Any], limits: RequestLimits) -> None:
    """Raise for fields that do not go with `suffix`."""
    if not body.suffix:
        return
    check_prompts("suffix", [body.suffix], limits)
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise unsupported("suffix needs prompts that are texts, not ids", "suffix")
    if body.echo:
        raise unsupported("echo and suffix do not go together", "echo")


def made_prompts(llm: LLM, prompts: list[Any], suffix: str | None) -> list[Any]:
    """The prompts as ids, where they are mixtures or have a gap; to be called in a thread."""
    if suffix:
        return [infill_prompt(llm.tokenizer, prompt, suffix) for prompt in prompts]
    return [mixed_ids(llm, prompt) if is_mixed(prompt) else prompt for prompt in prompts]


def mixed_ids(llm: LLM, parts: list[int | str]) -> list[int]:
    """The ids of texts and ids in a row; only a text at the beginning gets a BOS token."""
    ids: list[int] = []
    for at, part in enumerate(parts):
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += llm.tokenizer.encode(part, special=True, bos=None if at == 0 else False)
    if not ids:
        raise ApiError(400, "prompt: there is no token in it", param="prompt", code="invalid_value")
    return ids
