"""The token ids of a prompt: of a text, of ids, or of both in a row."""

from __future__ import annotations

from typing import Any

from stretto.llm import LLM
from stretto.server.errors import ApiError


def ids_of(llm: LLM, prompt: Any) -> list[int]:
    """The token ids of a prompt."""
    if callable(prompt):
        prompt = prompt()
    if isinstance(prompt, list) and is_mixed(prompt):
        return mixed_ids(llm, prompt)
    return llm.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else list(prompt)


def is_mixed(prompt: Any) -> bool:
    """Whether a prompt is a list of texts and ids."""
    if not isinstance(prompt, list):
        return False
    kinds = set(map(type, prompt))
    return kinds == {int, str}


def mixed_ids(llm: LLM, parts: list[int | str], bos: bool | None = None) -> list[int]:
    """The ids of texts and ids in a row; only a text at the beginning gets a BOS token."""
    ids: list[int] = []
    for at, part in enumerate(parts):
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += llm.tokenizer.encode(part, special=True, bos=bos if at == 0 else False)
    if not ids:
        raise ApiError(400, "prompt: there is no token in it", param="prompt", code="invalid_value")
    return ids
