"""Log-probabilities of prompts, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.engine import Engine, Request
from stretto.engine.passes import measure_request
from stretto.engine.types import Token
from stretto.errors import InvalidRequest
from stretto.llm.prompts import prompt_ids
from stretto.options.generating import CACHE_SALT


class PromptScores:
    """The requests that score some prompts, and what they found; a prompt of one token needs none."""

    def __init__(
        self,
        engine: Engine,
        prompts: Any,
        top: int,
        salt: str | None,
        adapter: str | Mapping[str, float] | None = None,
    ) -> None:
        if not isinstance(prompts, list) or not prompts:
            hint = "; for one prompt, give [prompt]" if prompts else ""
            raise InvalidRequest(
                f"prompts must be a list of texts or of lists of ids, not {prompts!r:.100}{hint}",
                param="prompts",
                value=prompts,
            )
        CACHE_SALT.check(salt)
        self._engine = engine
        self._ids = [prompt_ids(engine, prompt) for prompt in prompts]
        self._texts = [isinstance(prompt, str) for prompt in prompts]
        if not all(self._ids):
            raise InvalidRequest("a prompt has no tokens; give at least one", param="prompt")
        self._requests = [
            measure_request(engine, ids, top, salt, adapter) if len(ids) > 1 else None for ids in self._ids
        ]

    @property
    def requests(self) -> list[Request[Any]]:
        """Those to run."""
        return [request for request in self._requests if request is not None]

    def results(self) -> list[list[Token]]:
        """The tokens of each prompt with text and log-probabilities, when all requests have finished."""
        found: list[list[Token]] = []
        for ids, request, is_text in zip(self._ids, self._requests, self._texts, strict=True):
            measured = [(None, ()), *([] if request is None else request.result())]
            texts = self._pieces(ids, is_text)
            found.append(
                [Token(*each, *one) for each, one in zip(zip(ids, texts, strict=True), measured, strict=True)]
            )
        return found

    def _pieces(self, ids: list[int], is_text: bool) -> list[str]:
        """The text of each token; special tokens show where a text had them, a BOS put before it does not."""
        tokenizer = self._engine.tokenizer
        detokenizer = tokenizer.detokenizer(special=is_text)
        n_hidden = len(tokenizer.prefix_ids) if is_text and tokenizer.add_bos else 0
        pieces = [detokenizer.push(token) for token in ids]
        return [""] * n_hidden + pieces[n_hidden:]
