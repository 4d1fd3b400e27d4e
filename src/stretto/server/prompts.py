"""Prompts of `/v1/completions` that are more than a text or a list of ids: mixtures, and gaps to fill."""

from __future__ import annotations

from typing import Any

from stretto.llm import LLM
from stretto.server.errors import ApiError, unsupported
from stretto.server.options import check_prompts
from stretto.server.prompt_ids import ids_of, is_mixed, mixed_ids
from stretto.server.schemas import CompletionRequest, Sampling
from stretto.server.settings import RequestLimits
from stretto.text.infill import infill_prompt


def check_suffix(body: CompletionRequest, prompts: list[Any], limits: RequestLimits) -> None:
    """Raise for fields that do not go with `suffix`."""
    if not body.suffix:
        return
    check_prompts("suffix", [body.suffix], limits)
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise unsupported("suffix needs prompts that are texts, not ids", "suffix")
    if body.add_special_tokens is False:
        raise unsupported("add_special_tokens: false and suffix do not go together", "add_special_tokens")
    if body.echo:
        raise unsupported("echo and suffix do not go together", "echo")


def is_made(body: CompletionRequest, prompts: list[Any]) -> bool:
    """Whether prompts are more than what the engine takes."""
    is_changed = body.suffix or body.truncate_prompt_tokens is not None or body.add_special_tokens is False
    return bool(is_changed) or any(map(is_mixed, prompts))


def made_prompts(llm: LLM, prompts: list[Any], body: CompletionRequest) -> list[Any]:
    """The prompts as ids, where they are mixtures, have a gap or are cut; to be called in a thread."""
    if body.suffix:
        made = [infill_prompt(llm.tokenizer, prompt, body.suffix) for prompt in prompts]
    else:
        bos = False if body.add_special_tokens is False else None
        made = [_ids_or_text(llm, prompt, bos) for prompt in prompts]
    return truncated(llm, made, body)


def _ids_or_text(llm: LLM, prompt: Any, bos: bool | None) -> Any:
    if is_mixed(prompt):
        return mixed_ids(llm, prompt, bos)
    if isinstance(prompt, str) and bos is False:
        return llm.tokenizer.encode(prompt, special=True, bos=False)
    return prompt


def truncated(llm: LLM, prompts: list[Any], body: Sampling) -> list[Any]:
    """The prompts, of which `truncate_prompt_tokens` keeps a part; to be called in a thread."""
    most = body.truncate_prompt_tokens
    if most is None:
        return prompts
    if most == 0:
        raise ApiError(
            400, "truncate_prompt_tokens is 0; a prompt needs a token", param="truncate_prompt_tokens",
            code="invalid_value",
        )  # fmt: skip
    if most < 0:
        most = max(1, llm.context_length - max(1, body.max_tokens or 1))
    several = [plain_ids(llm, prompt, "truncate_prompt_tokens") for prompt in prompts]
    return [ids[:most] if body.truncation_side == "right" else ids[-most:] for ids in several]


def plain_ids(llm: LLM, prompt: Any, field: str) -> list[int]:
    """The ids of a prompt for a field that does not go with images."""
    ids = ids_of(llm, prompt)
    if not all(type(token) is int for token in ids):
        raise unsupported(f"{field} and images do not go together", field)
    return ids
