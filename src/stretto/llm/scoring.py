"""The part of `LLM` that scores texts: log-probabilities of tokens, of continuations, of prompts."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from stretto.engine import Engine, Request, Sequence
from stretto.engine.passes import complete, measure_request, packed_request, score_request
from stretto.engine.types import Token
from stretto.engine.worker import Worker
from stretto.errors import InvalidRequest, wrong_value
from stretto.llm.prompts import OnePrompt, prompt_ids
from stretto.options.generating import CACHE_SALT
from stretto.sampling.params import SamplingParams

# Log-probabilities of prompts, token by token.


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


Floats = NDArray[np.float32]
Adapter = str | Mapping[str, float]  # a name, or names with a scale for each
Continuations = Seq[str] | Seq[Seq[int]]


class Scoring:
    """Everything that says how probable a text is."""

    _engine: Engine
    _worker: Worker  # steps for asynchronous callers

    @overload
    def score(
        self,
        prompt: OnePrompt,
        continuations: None = None,
        *,
        adapter: Adapter | None = None,
        sampling: SamplingParams | None = None,
    ) -> Floats: ...
    @overload
    def score(
        self,
        prompt: OnePrompt | Sequence,
        continuations: Continuations,
        *,
        adapter: Adapter | None = None,
        sampling: SamplingParams | None = None,
    ) -> list[Floats]: ...
    def score(
        self,
        prompt: OnePrompt | Sequence,
        continuations: Continuations | None = None,
        *,
        adapter: Adapter | None = None,
        sampling: SamplingParams | None = None,
    ) -> Floats | list[Floats]:
        """float32[n-1]: the log-probability of each token after the first, given those before it.

        With `continuations` of the prompt: of each of them float32[n], all computed in one pass, packed. A
        `Sequence` as prompt stays as it is. With `sampling` log-probabilities are those after temperature,
        top-k and the rest of the chain, as `sampled_logprobs` reports them: −inf for what it excludes.

        >>> scores = llm.score("The capital of France is", [" Paris", " Rome", " the city of Lyon"])
        >>> [one.sum() for one in scores]           # the log-probability of each
        """
        request = self._scoring(prompt, continuations, adapter, sampling)
        return cast("Floats | list[Floats]", complete(self._engine, request))

    @overload
    async def ascore(
        self,
        prompt: OnePrompt,
        continuations: None = None,
        *,
        adapter: Adapter | None = None,
        sampling: SamplingParams | None = None,
    ) -> Floats: ...
    @overload
    async def ascore(
        self,
        prompt: OnePrompt | Sequence,
        continuations: Continuations,
        *,
        adapter: Adapter | None = None,
        sampling: SamplingParams | None = None,
    ) -> list[Floats]: ...
    async def ascore(
        self,
        prompt: OnePrompt | Sequence,
        continuations: Continuations | None = None,
        *,
        adapter: Adapter | None = None,
        sampling: SamplingParams | None = None,
    ) -> Floats | list[Floats]:
        """As `score`, to await; cancelling the task cancels it."""
        from stretto.engine.aio import finished_pass

        make = partial(self._scoring, prompt, continuations, adapter, sampling)
        return cast("Floats | list[Floats]", await finished_pass(self._worker, make))

    def _scoring(
        self,
        prompt: OnePrompt | Sequence,
        continuations: Continuations | None,
        adapter: Adapter | None,
        sampling: SamplingParams | None,
    ) -> Request[Any]:
        if continuations is not None:
            several = self._continuation_ids(continuations)
            text = prompt if isinstance(prompt, Sequence) else prompt_ids(self._engine, prompt)
            return packed_request(self._engine, text, several, adapter, sampling)
        if isinstance(prompt, Sequence):
            raise InvalidRequest(
                "a sequence has been computed already; give `continuations`, or score its tokens",
                param="continuations",
            )
        return score_request(self._engine, prompt_ids(self._engine, prompt), adapter, sampling)

    def _continuation_ids(self, continuations: Continuations) -> list[list[int]]:
        """The tokens of continuations; special tokens in texts are not parsed, as in `seq.append`."""
        if isinstance(continuations, (str, bytes)) or not isinstance(continuations, Seq):
            raise wrong_value("continuations", continuations, "a list of texts or of lists of ids")
        tokenizer, runner = self._engine.tokenizer, self._engine.runner
        return [
            tokenizer.encode(one) if isinstance(one, str) else runner.check_tokens(one)
            for one in continuations
        ]

    def prompt_logprobs(
        self,
        prompts: list[str] | list[list[int]],
        top: int = 1,
        *,
        cache_salt: str | None = None,
        adapter: Adapter | None = None,
    ) -> list[list[Token]]:
        """Each token of some prompts with its log-probability and those of the `top` most probable ones.

        Prompts share passes. The first token of each has no log-probability: nothing comes before it.

        >>> [token.logprob for token in llm.prompt_logprobs(["Grass is green"])[0]]
        """
        plan = PromptScores(self._engine, prompts, top, cache_salt, adapter)
        self._engine.complete([[request] for request in plan.requests])
        return plan.results()

    async def aprompt_logprobs(
        self,
        prompts: list[str] | list[list[int]],
        top: int = 1,
        *,
        cache_salt: str | None = None,
        adapter: Adapter | None = None,
    ) -> list[list[Token]]:
        """As `prompt_logprobs`, to await; cancelling the task cancels it."""
        from stretto.engine.aio import finished

        plans: list[PromptScores] = []

        def make() -> list[list[Request[Any]]]:
            plans.append(PromptScores(self._engine, prompts, top, cache_salt, adapter))
            return [[request] for request in plans[0].requests]

        await finished(self._worker, make)
        return plans[0].results()
