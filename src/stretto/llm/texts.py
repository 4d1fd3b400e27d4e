"""The half of `LLM` that makes texts: generate, stream, chat, and the same for asyncio."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from stretto.engine import Engine, Request, Result, Sequence
from stretto.engine.branch import Branches
from stretto.engine.branch import new_branches as start_branches
from stretto.engine.branch import new_text as start_text
from stretto.engine.params import Options, RequestParams, merge_options, request_params, split_branching
from stretto.engine.sequence import track_in
from stretto.engine.stream import TextStream
from stretto.engine.worker import Worker
from stretto.errors import InvalidRequest, param_error, wrong_value
from stretto.llm.prompts import (
    Message,
    OnePrompt,
    Parts,
    Prompt,
    conversation_ids,
    known_template,
    prompt_ids,
)
from stretto.options.documenting import document_options
from stretto.options.generating import CACHE_SALT, CHAT, GENERATE, STREAM
from stretto.options.names import check_backend
from stretto.text.messages import thinking_arguments
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stretto.parallel import Run


# From prompts and options to requests of the engine; combinations without a meaning are refused here.


def new_text(engine: Engine, prompt: Prompt | Sequence, options: Mapping[str, Any]) -> Request[Any]:
    """A request for one text."""
    how, rest = split_branching(options)
    if not how.plain:
        raise InvalidRequest("a stream gives one text; n, best_of and beams are for generate", param="n")
    params = _params(engine, rest)
    return start_text(engine, _find_start(engine, prompt, params), params)


def new_branches(engine: Engine, prompt: Prompt | Sequence, options: Mapping[str, Any]) -> Branches:
    """Requests for the texts of one prompt."""
    return new_batch(engine, [prompt], options)[0]


def new_batch(engine: Engine, prompts: Iterable[Any], options: Mapping[str, Any]) -> list[Branches]:
    """Requests for the texts of several prompts, all or none; their options are checked once."""
    how, rest = split_branching(options)
    params = _params(engine, rest)
    if how.best_of is not None:
        params = replace(params, scored=True)
    made: list[Branches] = []
    try:
        for prompt in prompts:
            made.append(start_branches(engine, _find_start(engine, prompt, params), params, how))
    except BaseException:
        _cancel(engine, [branches.requests[0] for branches in made])
        raise
    return made


def new_runs(engine: Engine, prompts: Iterable[Any], options: Mapping[str, Any]) -> list[Run]:
    """Parallel runs, one for each prompt, all or none."""
    from stretto.parallel import new_run, parallel_params

    run, params = parallel_params(options, engine.runner.spec.n_vocab)
    params = _compiled(engine, params)
    made: list[Run] = []
    try:
        for prompt in prompts:
            made.append(new_run(engine, _find_start(engine, prompt, params), run, params))
    except BaseException:
        _cancel(engine, made)
        raise
    return made


def _cancel(engine: Engine, requests: Iterable[Request[Any]]) -> None:
    with engine.lock:
        for request in requests:
            request.cancel()


def _find_start(engine: Engine, prompt: Prompt | Sequence, params: RequestParams) -> list[int] | Sequence:
    """Token ids, or a sequence of this model."""
    if not isinstance(prompt, Sequence):
        return prompt_ids(engine, prompt, params.cache_salt)
    track_in(engine, prompt)
    return prompt


def _params(engine: Engine, options: Mapping[str, Any]) -> RequestParams:
    params = request_params(options, engine.runner.spec.n_vocab)
    if params.fused:
        engine.backend.capabilities.require("fused", engine.backend.name)
    return _compiled(engine, params)


def _compiled(engine: Engine, params: RequestParams) -> RequestParams:
    if params.grammar is None:
        return params
    from stretto.structured import Grammar

    if isinstance(params.grammar, Grammar):
        return replace(params, grammar=engine.grammars.compile(params.grammar))
    return params


if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from stretto.engine.aio import AsyncStream, AsyncTexts
    from stretto.options.keywords import ChatKeywords, GenerateKeywords, Keywords
    from stretto.tools.check import Choice, Tools
    from stretto.tools.plan import ToolPlan


TOOL_OPTIONS = "tools", "tool_choice", "parallel_tool_calls"

Prompts = list[str] | list[list[int]] | list[Parts] | list[Sequence]
Prepared = tuple[list[int] | Sequence, "ToolPlan", dict[str, Any]]  # the prompt of a chat, and its options


class Texts:
    """Everything that turns prompts and conversations into texts."""

    _engine: Engine
    _worker: Worker  # steps for asynchronous callers
    template: ChatTemplate | None
    tokenizer: Tokenizer
    defaults: Options

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        """An empty model for `__init__`; a name instead of a backend is answered with `stretto.load`."""
        check_backend(args, keywords)
        return super().__new__(cls)

    @overload
    def generate(
        self,
        prompt: OnePrompt | Sequence,
        options: Options | None = None,
        *,
        n: int,
        **keywords: Unpack[GenerateKeywords],
    ) -> list[Result]: ...
    @overload
    def generate(
        self,
        prompt: OnePrompt | Sequence,
        options: Options | None = None,
        *,
        n: None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> Result: ...
    @overload
    def generate(
        self, prompt: Prompts, options: Options | None = None, *, n: int, **keywords: Unpack[GenerateKeywords]
    ) -> list[list[Result]]: ...
    @overload
    def generate(
        self,
        prompt: Prompts,
        options: Options | None = None,
        *,
        n: None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> list[Result]: ...
    @document_options(GENERATE)
    def generate(
        self,
        prompt: OnePrompt | Sequence | Prompts,
        options: Options | None = None,
        *,
        progress: bool = False,
        **keywords: Any,
    ) -> Result | list[Result] | list[list[Result]]:
        """Generate from a prompt, or from each of a list of prompts in one batch, results in order.

        A prompt is text, a list of token ids, a tuple of texts and images, or a `Sequence`, which is then
        continued: it has the generated tokens in the end, and its edits and forks stay. (With `n`, `best_of`
        or `beams` its forks are continued instead.) `progress` shows a bar on stderr. Options of sampling
        that are not given are those that the model's authors recommend (`llm.defaults`), if they do, or the
        defaults below.

        >>> llm.generate("The capital of France is", max_tokens=8, temperature=0).text
        """
        chosen = self._chosen(options, keywords)
        if is_list(prompt):
            several = new_batch(self._engine, cast(list[Prompt], prompt), chosen)
            return self._run(several, progress)  # type: ignore[return-value]  # as many as the overloads say
        return self._run([new_branches(self._engine, cast(Prompt, prompt), chosen)], progress)[0]

    @document_options(STREAM)
    def stream(
        self, prompt: Prompt | Sequence, options: Options | None = None, **keywords: Unpack[Keywords]
    ) -> TextStream:
        """Generate token by token: iterate the stream, then read its `result`."""
        return TextStream(self._engine, new_text(self._engine, prompt, self._chosen(options, keywords)))

    @document_options(STREAM)
    def astream(
        self, prompt: Prompt | Sequence, options: Options | None = None, **keywords: Unpack[Keywords]
    ) -> AsyncStream:
        """As `stream`, for `async for`; leaving the loop cancels it and frees its cells."""
        from stretto.engine.aio import AsyncStream  # so that only its users import asyncio

        chosen = self._chosen(options, keywords)
        return AsyncStream(self._worker, lambda: new_text(self._engine, prompt, chosen))

    @overload
    async def agenerate(
        self,
        prompt: OnePrompt | Sequence,
        options: Options | None = None,
        *,
        n: int,
        **keywords: Unpack[Keywords],
    ) -> list[Result]: ...
    @overload
    async def agenerate(
        self,
        prompt: OnePrompt | Sequence,
        options: Options | None = None,
        *,
        n: None = None,
        **keywords: Unpack[Keywords],
    ) -> Result: ...
    @overload
    async def agenerate(
        self, prompt: Prompts, options: Options | None = None, *, n: int, **keywords: Unpack[Keywords]
    ) -> list[list[Result]]: ...
    @overload
    async def agenerate(
        self, prompt: Prompts, options: Options | None = None, *, n: None = None, **keywords: Unpack[Keywords]
    ) -> list[Result]: ...
    @document_options(GENERATE)
    async def agenerate(
        self, prompt: OnePrompt | Sequence | Prompts, options: Options | None = None, **keywords: Any
    ) -> Result | list[Result] | list[list[Result]]:
        """As `generate`, to await; cancelling the task cancels what it waits for."""
        from stretto.engine.aio import finished

        several: list[Branches] = []
        whole, chosen = is_list(prompt), self._chosen(options, keywords)

        def make() -> list[list[Request[Any]]]:
            prompts = cast(list[Prompt], prompt) if whole else [cast(Prompt, prompt)]
            several.extend(new_batch(self._engine, prompts, chosen))
            return [branches.requests for branches in several]

        await finished(self._worker, make)
        results = [branches.results() for branches in several]
        return cast(list[Result], results) if whole else results[0]

    @document_options(STREAM)
    def astream_many(
        self,
        prompts: Seq[str | list[int] | Sequence | Callable[[], list[int]]],
        options: Options | None = None,
        *,
        n: int | None = 1,
        **keywords: Unpack[Keywords],
    ) -> AsyncTexts:
        """`n` texts of each prompt, all in the same steps, as lists of (index of the text, token).

        A prompt may be a function that makes it: it is called in a thread, where it blocks no event loop.
        A `Sequence` is continued with `n=None`, which is one text, and forked with a number.
        """
        from stretto.engine.aio import AsyncTexts

        chosen = {**self._chosen(options, keywords), "n": n}
        return AsyncTexts(self._worker, lambda ready: new_batch(self._engine, ready, chosen), list(prompts))

    def _chosen(self, options: Options | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a call: keywords, under them a value, under that what the model's authors say."""
        return {**self.defaults, **merge_options(options, keywords)}

    def chat_prompt(
        self,
        messages: str | Seq[Message],
        *,
        template: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
        continue_final: bool = False,
        **variables: Any,
    ) -> list[int]:
        """The ids of a conversation in the model's own format, up to where its answer begins.

        A text is one message of the user. The text of a message can never become a special token. `template`
        are arguments of the chat template, as in `chat`; `cache_salt` is that of the request, for its images.
        `continue_final` ends them behind the text of the last message, one of the assistant, which the model
        then continues.
        """
        CACHE_SALT.check(cache_salt)
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return conversation_ids(
            self._engine, self.template, messages, template, variables, cache_salt, continue_final
        )

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template, so that it can `chat`."""
        return self.template is not None

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables that the chat template reads beside the messages, such as `enable_thinking`."""
        return frozenset() if self.template is None else frozenset(self.template.variables)

    def thinking(self, think: bool | str) -> dict[str, Any]:
        """The template arguments that turn thinking on or off, or set its effort, by this model's names.

        >>> llm.chat(messages, template=llm.thinking(False))
        """
        return thinking_arguments(known_template(self.template), think)

    @overload
    def chat(
        self,
        messages: str | Seq[Message] | Sequence,
        options: Options | None = None,
        *,
        stream: Literal[False] = False,
        **keywords: Unpack[ChatKeywords],
    ) -> Result: ...
    @overload
    def chat(
        self,
        messages: str | Seq[Message] | Sequence,
        options: Options | None = None,
        *,
        stream: Literal[True],
        **keywords: Unpack[ChatKeywords],
    ) -> TextStream: ...
    @overload
    def chat(
        self,
        messages: str | Seq[Message] | Sequence,
        options: Options | None = None,
        *,
        stream: bool,
        **keywords: Unpack[ChatKeywords],
    ) -> Result | TextStream: ...
    @document_options(CHAT)
    def chat(
        self,
        messages: str | Seq[Message] | Sequence,
        options: Options | None = None,
        *,
        stream: bool = False,
        **keywords: Any,
    ) -> Result | TextStream:
        """Answer a conversation: a list of messages, each with a role and a content, or the text of one.

        A `Sequence` that holds a conversation up to where the answer begins (`chat_prompt`) is continued.
        With `tools` the model may call functions, or has to (`tool_choice`: "auto", "none", "required" or a
        function; once, unless `parallel_tool_calls=True`); the result has its `tool_calls` (stretto docs
        how-to/tools). `template` has arguments for the chat template. The reasoning of a model that thinks is
        told apart (stretto docs chat): the result's `text` is the answer alone and `reasoning` the rest,
        unless `reasoning=False` asks for the text as it is.

        >>> llm.chat([{"role": "user", "content": "Hi"}], template={"enable_thinking": False}).text
        """
        prompt, plan, chosen = self._prepare(messages, options, keywords)
        if stream:
            from stretto.tools.plan import ToolStream

            return ToolStream(self._engine, new_text(self._engine, prompt, chosen), plan)
        (found,) = self._run([new_branches(self._engine, prompt, chosen)])
        return cast(Result, plan.read_all(found))

    @overload
    def achat(
        self,
        messages: str | Seq[Message] | Sequence,
        options: Options | None = None,
        *,
        stream: Literal[False] = False,
        **keywords: Unpack[ChatKeywords],
    ) -> Coroutine[Any, Any, Result]: ...
    @overload
    def achat(
        self,
        messages: str | Seq[Message] | Sequence,
        options: Options | None = None,
        *,
        stream: Literal[True],
        **keywords: Unpack[ChatKeywords],
    ) -> AsyncStream: ...
    @document_options(CHAT)
    def achat(
        self,
        messages: str | Seq[Message] | Sequence,
        options: Options | None = None,
        *,
        stream: bool = False,
        **keywords: Any,
    ) -> Coroutine[Any, Any, Result] | AsyncStream:
        """As `chat`, to await; with `stream=True` for `async for`, as `astream`.

        >>> async for token in llm.achat(messages, stream=True):
        ...     print(token.text, end="", flush=True)
        """

        if not stream:
            return self._answered(partial(self._prepare, messages, options, keywords))
        from stretto.tools.plan import AsyncToolStream

        def make() -> tuple[Request[Any], ToolPlan]:
            prompt, plan, chosen = self._prepare(messages, options, keywords)
            return new_text(self._engine, prompt, chosen), plan

        return AsyncToolStream(self._worker, make)

    async def _answered(self, prepare: Callable[[], Prepared]) -> Result:
        """The answer to a conversation that is rendered in a thread."""
        from asyncio import to_thread

        prompt, plan, chosen = await to_thread(prepare)
        return cast(Result, plan.read_all(await self.agenerate(cast(Any, prompt), **chosen)))

    def _prepare(
        self, messages: str | Seq[Message] | Sequence, options: Options | None, keywords: dict[str, Any]
    ) -> Prepared:
        """The prompt of a conversation, the plan for its tools, and the options of its request."""
        from stretto.tools.plan import plan_tools

        template, *tools = [keywords.pop(name, None) for name in ("template", *TOOL_OPTIONS)]
        chosen = {"reasoning": True, **self._chosen(options, keywords)}
        known = chosen.pop("template", None)
        arguments = known if template is None else template
        plan = plan_tools(self.template, self.tokenizer, *tools)
        prompt: list[int] | Sequence
        if not isinstance(messages, Sequence):
            salt = chosen.get("cache_salt")
            prompt = self.chat_prompt(messages, tools=plan.shown, template=arguments, cache_salt=salt)
            plan = plan.beside(messages)
        elif not arguments:
            prompt = messages
        else:
            raise param_error(
                "template", "a sequence is continued as it is; give the arguments to chat_prompt"
            )
        ids = list(prompt.tokens) if isinstance(prompt, Sequence) else prompt
        return prompt, plan.salted(ids), plan.options(chosen)

    def tool_plan(
        self, tools: Tools | None, tool_choice: Choice | None = None, parallel: bool | None = None
    ) -> ToolPlan:
        """The plan by which `chat` uses tools, for loops of your own.

        An answer has several calls at most if `parallel`, and one if not. By default it is one where the
        model has to call.

        `plan.shown` is for `chat_prompt(messages, tools=…)`, `plan.options(…)` for the request, and
        `plan.read(result)` finds the calls.
        """
        from stretto.tools.plan import plan_tools

        return plan_tools(self.template, self.tokenizer, tools, tool_choice, parallel)

    async def atool_plan(
        self,
        tools: Tools | None,
        tool_choice: Choice | None = None,
        parallel: bool | None = None,
        *,
        caller: str = "",
    ) -> ToolPlan:
        """As `tool_plan`; the event loop goes on while schemas of parameters are rewritten.

        That may take long: callers of a server share its threads, as those of `compile_grammar`.
        """
        import asyncio  # these two are not for those who never await

        from stretto.structured.workers import WORKERS

        job = WORKERS.submit(lambda: self.tool_plan(tools, tool_choice, parallel), caller)
        return cast("ToolPlan", await asyncio.wrap_future(job))

    def _run(self, several: list[Branches], progress: bool = False) -> list[Result | list[Result]]:
        """Step the engine until all have finished, and show how far they are if asked for."""
        groups = [branches.requests for branches in several]
        if not isinstance(progress, bool):
            raise wrong_value("progress", progress, "True or False")
        if progress and groups:
            with progress_bar([request for group in groups for request in group]) as tell:
                self._engine.complete(groups, tell)
        else:
            self._engine.complete(groups)
        return [branches.results() for branches in several]


def is_list(prompt: Any) -> bool:
    """Whether these are several prompts, or none, and not the tokens of one."""
    return isinstance(prompt, list) and not (prompt and isinstance(prompt[0], (int, np.integer)))


# The bar of `llm.generate(prompts, progress=True)`: on stderr, with the texts that are done.

REFRESH_SECONDS = 0.1


@contextmanager
def progress_bar(requests: list[Request[Any]]) -> Iterator[Callable[[], None]]:
    """Show a bar for the texts of requests while the block runs; the function it yields updates it."""
    from rich.console import Console  # so that only its users import it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("texts{task.description}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
    task = bar.add_task("", total=len(requests))
    begun = shown = time.monotonic()

    def update() -> None:
        n_tokens = sum(len(request.decoder.output.tokens) for request in requests)
        seconds = max(1e-3, time.monotonic() - begun)
        n_done = sum(request.finished for request in requests)
        speed = f", {n_tokens:,} tokens, {n_tokens / seconds:.1f} tok/s"
        bar.update(task, completed=n_done, description=speed, refresh=True)

    def tell() -> None:
        nonlocal shown
        if time.monotonic() >= shown + REFRESH_SECONDS:
            update()
            shown = time.monotonic()

    with bar:
        try:
            yield tell
        finally:
            update()
