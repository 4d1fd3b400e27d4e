"""A loaded model: what one does with it, each in a line or two."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Backend, Batch
from stretto.engine import Engine, Limits, Request, Result, Sequence, Step
from stretto.engine.branch import Branches
from stretto.engine.metrics import Metrics
from stretto.engine.params import sampling_params
from stretto.engine.parked import ParkedSequences
from stretto.engine.saving import restore
from stretto.engine.scoring import score
from stretto.engine.stream import TextStream
from stretto.engine.table import CellTable
from stretto.errors import InvalidRequest
from stretto.llm.making import new_branches, new_runs, new_text
from stretto.llm.prompts import Message, OnePrompt, Parts, Prompt, conversation_ids, prompt_ids
from stretto.models import ModelSpec
from stretto.parallel import ParallelStream, ParallelText, run_all
from stretto.sampling.rng import RandomStream
from stretto.structured import Grammar, Guide, as_grammar
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.tools.plan import ToolPlan, ToolStream, plan_tools
from stretto.vision.vision import Vision

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stretto.engine.aio import AsyncStream
    from stretto.engine.embedding import Pooling
    from stretto.engine.many import AsyncTexts
    from stretto.engine.params import Options, SamplingOptions
    from stretto.parallel import ParallelOptions
    from stretto.parallel.aio import AsyncParallelStream
    from stretto.tools.check import Choice, Tools

Floats = NDArray[np.float32]

ONE_STREAM = "a stream is of one run; make one for each prompt, and take steps in turns"


class LLM:
    """A model, ready to generate. Make one with `stretto.load`; close it, or use it in a `with`."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        *,
        fingerprint: Callable[[], str] | None = None,
        prefix_cache: bool = True,
        limits: Limits | None = None,
        vision: Vision | None = None,
    ) -> None:
        self._engine = Engine(backend, tokenizer, limits, prefix_cache, fingerprint)
        self._engine.images = self.vision = vision  # what encodes images, or None
        self._template = template
        self.tokenizer = tokenizer
        self.cells = CellTable(self._engine)  # copy, remove, keep, clear by `seq.id`
        self.cache = ParkedSequences(self._engine)  # what is kept for prompts to come

    @property
    def spec(self) -> ModelSpec:
        """The model's shape."""
        return self._engine.spec

    @property
    def backend(self) -> Backend:
        """What runs the model."""
        return self._engine.backend

    @property
    def precision(self) -> str:
        """What products are computed with: "standard", "high", or "exact" by the reference backend."""
        return self._engine.backend.precision

    @property
    def metrics(self) -> Metrics:
        """What the engine has done and is doing."""
        metrics = self._engine.metrics
        metrics.threads = self.backend.active_threads
        return metrics

    @property
    def context_length(self) -> int:
        """How many tokens a sequence can have: the model's limit, or the cells if they are fewer."""
        return self._engine.context_length

    # -- text --

    @overload
    def generate(self, prompt: OnePrompt, *, n: int, **options: Unpack[Options]) -> list[Result]: ...
    @overload
    def generate(self, prompt: OnePrompt, *, n: None = None, **options: Unpack[Options]) -> Result: ...
    @overload
    def generate(
        self, prompt: list[str] | list[list[int]] | list[Parts], *, n: int, **options: Unpack[Options]
    ) -> list[list[Result]]: ...
    @overload
    def generate(
        self, prompt: list[str] | list[list[int]] | list[Parts], *, n: None = None, **options: Unpack[Options]
    ) -> list[Result]: ...
    def generate(
        self, prompt: OnePrompt | list[str] | list[list[int]] | list[Parts], **options: Any
    ) -> Result | list[Result] | list[list[Result]]:
        """Generate from a prompt, or from each of a list of prompts in one batch, results in order.

        A prompt is text, a list of token ids, or a tuple of texts and images. `RequestParams` documents the
        options, `Branching` those for several texts from one prompt: with `n` each gets a list of results.

        >>> llm.generate("The capital of France is", max_tokens=8, temperature=0).text
        """
        if _is_list(prompt):
            several = [new_branches(self._engine, one, options) for one in cast(list[Prompt], prompt)]
            return self._run(several)  # type: ignore[return-value]  # as many with `n` as the overloads say
        return self._run([new_branches(self._engine, cast(Prompt, prompt), options)])[0]

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> TextStream:
        """Generate token by token: iterate the stream, then read its `result`."""
        return TextStream(self._engine, new_text(self._engine, prompt, options))

    def astream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """As `stream`, for `async for`; leaving the loop cancels it and frees its cells."""
        from stretto.engine.aio import AsyncStream  # asyncio is imported by those who use it

        return AsyncStream(self._engine.worker, lambda: new_text(self._engine, prompt, options))

    async def agenerate(
        self, prompt: OnePrompt | list[str] | list[list[int]] | list[Parts], **options: Any
    ) -> Result | list[Result] | list[list[Result]]:
        """As `generate`, to await; cancelling the task cancels what it waits for."""
        from stretto.engine.aio import finished

        several: list[Branches] = []
        whole = _is_list(prompt)

        def make() -> list[list[Request]]:
            prompts = cast(list[Prompt], prompt) if whole else [cast(Prompt, prompt)]
            several.extend(new_branches(self._engine, one, options) for one in prompts)
            return [branches.requests for branches in several]

        await finished(self._engine.worker, make)
        results = [branches.results() for branches in several]
        return cast(list[Result], results) if whole else results[0]

    def astream_many(
        self,
        prompts: Seq[str | list[int] | Callable[[], list[int]]],
        *,
        n: int = 1,
        **options: Unpack[Options],
    ) -> AsyncTexts:
        """`n` texts of each prompt, all in the same steps, as lists of (index of the text, token).

        A prompt may be a function that makes it: it is called in a thread, where it holds nobody up.
        """
        from stretto.engine.many import AsyncTexts

        engine, how = self._engine, {**options, "n": n}
        return AsyncTexts(
            engine.worker, lambda ready: [new_branches(engine, one, how) for one in ready], list(prompts)
        )

    def chat_prompt(self, messages: Seq[Message], **variables: Any) -> list[int]:
        """The ids of a conversation in the model's own format, up to where its answer begins.

        The text of a message can never become a special token.
        """
        return conversation_ids(self._engine, self._template, messages, variables)

    @overload
    def chat(
        self,
        messages: Seq[Message],
        *,
        stream: Literal[False] = False,
        tools: Tools | None = None,
        tool_choice: Choice | None = None,
        **options: Unpack[Options],
    ) -> Result: ...
    @overload
    def chat(
        self,
        messages: Seq[Message],
        *,
        stream: bool,
        tools: Tools | None = None,
        tool_choice: Choice | None = None,
        **options: Unpack[Options],
    ) -> Result | TextStream: ...
    def chat(
        self,
        messages: Seq[Message],
        *,
        stream: bool = False,
        tools: Tools | None = None,
        tool_choice: Choice | None = None,
        **options: Any,
    ) -> Result | TextStream:
        """Answer a conversation: a list of messages, each with a role and a content.

        With `tools` the model may call functions, or has to (`tool_choice`: "auto", "none", "required" or a
        function); the result has its `tool_calls` (docs/structured.md).

        >>> llm.chat([{"role": "user", "content": "Hi"}]).text
        """
        plan = plan_tools(self._template, self.tokenizer, tools, tool_choice)
        prompt = self.chat_prompt(messages, tools=plan.shown)
        options = plan.options(options)
        if stream:
            return ToolStream(self._engine, new_text(self._engine, prompt, options), plan)
        return cast(Result, plan.read_all(self.generate(prompt, **options)))

    def tool_plan(self, tools: Tools | None, tool_choice: Choice | None = None) -> ToolPlan:
        """What `chat` does about tools, for loops of your own.

        `plan.shown` is for `chat_prompt(messages, tools=…)`, `plan.options(…)` for the request, and
        `plan.read(result)` finds the calls.
        """
        return plan_tools(self._template, self.tokenizer, tools, tool_choice)

    def score(self, ids: Seq[int] | str) -> Floats:
        """float32[n-1]: the log-probability of each token after the first, given those before it."""
        return score(self._engine, prompt_ids(self._engine, ids))

    def embed(
        self, texts: list[str] | list[list[int]], *, pooling: Pooling = "mean", normalize: bool = True
    ) -> Floats:
        """float32[n_texts, n_embd]: a vector for each text, from the final hidden states of its tokens.

        `pooling="mean"` is their mean, "last" the last token's; `normalize` makes vectors one long, so that
        their dot product is the cosine between them.

        >>> cat, dog = llm.embed(["a cat", "a dog"])
        """
        from stretto.engine.embedding import embed

        if not isinstance(texts, list):
            raise InvalidRequest(f"texts must be a list, not {type(texts).__name__}")
        return embed(self._engine, [prompt_ids(self._engine, text) for text in texts], pooling, normalize)

    @overload
    def parallel(
        self,
        prompt: str | list[int] | Sequence,
        *,
        stream: Literal[False] = False,
        **options: Unpack[ParallelOptions],
    ) -> ParallelText: ...
    @overload
    def parallel(
        self, prompt: str | list[int] | Sequence, *, stream: Literal[True], **options: Unpack[ParallelOptions]
    ) -> ParallelStream: ...
    @overload
    def parallel(
        self,
        prompt: list[str] | list[list[int]] | list[Sequence],
        *,
        stream: Literal[False] = False,
        **options: Unpack[ParallelOptions],
    ) -> list[ParallelText]: ...
    def parallel(
        self, prompt: Any, *, stream: bool = False, **options: Any
    ) -> ParallelText | list[ParallelText] | ParallelStream:
        """Keep every token that is probable enough, several at one position (docs/parallel.md).

        A prompt is text, token ids, or a sequence, from a fork of which the run goes on; a list of them is
        run in one batch. `ParallelParams` and `RequestParams` document the options. With `stream=True` steps
        come one by one.

        >>> llm.parallel("The cat", threshold=0.2, max_tokens=20).brackets
        """
        whole = _is_list(prompt)
        if whole and stream:
            raise InvalidRequest(ONE_STREAM)
        runs = new_runs(self._engine, prompt if whole else [prompt], options)
        if stream:
            return ParallelStream(self._engine, runs[0])
        texts = run_all(self._engine, runs)
        return texts if whole else texts[0]

    @overload
    def aparallel(
        self, prompt: Any, *, stream: Literal[False] = False, **options: Unpack[ParallelOptions]
    ) -> Awaitable[Any]: ...
    @overload
    def aparallel(
        self, prompt: str | list[int] | Sequence, *, stream: Literal[True], **options: Unpack[ParallelOptions]
    ) -> AsyncParallelStream: ...
    def aparallel(
        self, prompt: Any, *, stream: bool = False, **options: Any
    ) -> Awaitable[ParallelText | list[ParallelText]] | AsyncParallelStream:
        """As `parallel`, to await; with `stream=True` for `async for`. Leaving or cancelling it ends it."""
        from stretto.parallel.aio import AsyncParallelStream, outcomes

        whole, engine = _is_list(prompt), self._engine
        if not stream:
            prompts = prompt if whole else [prompt]
            return outcomes(engine.worker, lambda: new_runs(engine, prompts, options), whole)
        if whole:
            raise InvalidRequest(ONE_STREAM)
        return AsyncParallelStream(engine.worker, lambda: new_runs(engine, [prompt], options)[0])

    # -- tokens --

    def sequence(self, prompt: Prompt = (), seed: int | None = None) -> Sequence:
        """A sequence in your own hands: logits, sample, step, append, fork, truncate, remove."""
        return Sequence(self._engine, prompt_ids(self._engine, prompt), RandomStream(seed))

    def guide(self, grammar: Grammar | Mapping[str, Any]) -> Guide:
        """A guide through a grammar for a loop of your own: what may come next, and what has to.

        >>> guide = llm.guide(stretto.Grammar.choices(["yes", "no"]))
        >>> seq.sample(logits=guide.masked(seq.logits))
        """
        return self._engine.grammars.compile(as_grammar(grammar)).guide()

    def restore(self, path: str | os.PathLike[str]) -> Sequence:
        """The sequence that `seq.save` wrote: the same tokens, K and V, and random numbers to come.

        Anything but a whole file of this very model and kind of cache raises `SnapshotError`.

        >>> seq.save("story.safetensors")
        >>> llm.restore("story.safetensors").step()
        """
        sequence = self.sequence()
        try:
            restore(sequence, path)
        except BaseException:
            sequence.close()
            raise
        return sequence

    def step(self, sequences: Iterable[Sequence], **options: Unpack[SamplingOptions]) -> list[Step]:
        """Move several sequences on by one token each, with one forward pass for all."""
        params = sampling_params(options)
        several = list(sequences)
        for sequence in several:
            if not isinstance(sequence, Sequence) or sequence._engine is not self._engine:
                raise InvalidRequest(f"{sequence!r} is not a sequence of this model")
        if len({sequence.id for sequence in several}) != len(several):
            raise InvalidRequest("a sequence stands in the list twice; fork it to go two ways")
        with self._engine.lock:
            for sequence in several:
                sequence.prepare()
            self._engine.compute(several)
            return [sequence.take(sequence.choose(sequence.logits, params)) for sequence in several]

    def forward(self, batch: Batch) -> Floats:
        """Run a batch you built: float32[n_wanted, n_vocab], a row for each token that wanted logits."""
        if not isinstance(batch, Batch):
            raise InvalidRequest(f"forward takes a stretto.Batch, not {type(batch).__name__}")
        return self.cells.forward(batch)

    # -- the end --

    def close(self) -> None:
        """Cancel what runs and free everything."""
        self._engine.close()
        if self._engine.fingerprint is not None:
            self._engine.fingerprint = _closed  # the file's own would keep it mapped

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LLM {self.spec.architecture}, {self.spec.n_layer} layers, backend {self.backend.name!r}>"

    # -- within --

    def _run(self, several: list[Branches]) -> list[Result | list[Result]]:
        """Step the engine until all have finished."""
        self._engine.complete([branches.requests for branches in several])
        return [branches.results() for branches in several]


def _is_list(prompt: Any) -> bool:
    """Whether these are several prompts, and not the tokens of one."""
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], (int, np.integer))


def _closed() -> str:
    raise InvalidRequest("the model is closed; load it again")
