"""The tool plan of one chat: tools for the template, a grammar for the request, a parser for the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from secrets import token_hex
from types import NoneType
from typing import Any

from stretto.engine.aio import AsyncStream
from stretto.engine.engine import Engine
from stretto.engine.request import Request
from stretto.engine.stream import TextStream
from stretto.engine.types import Result
from stretto.engine.worker import Worker
from stretto.errors import InvalidRequest, wrong_value
from stretto.structured import Grammar, as_grammar
from stretto.text.reasoning import Format, Reasoning, find_format
from stretto.text.template import ChatTemplate, no_template
from stretto.text.tokenizer import Tokenizer
from stretto.tools.check import Choice, Tools, check_choice, check_tools
from stretto.tools.finding import call_format
from stretto.tools.following import CallReader
from stretto.tools.format import is_mark
from stretto.tools.grammar import calls_or_json, required_calls
from stretto.tools.parsing import Stop


@dataclass(frozen=True)
class ToolPlan:
    """`shown` goes to the template, `grammar` to the request, and `read` gets its result.

    `thinks` is False where a call that a grammar describes comes at once, without reasoning.
    """

    shown: list[Mapping[str, Any]] | None = None
    grammar: Grammar | None = None
    reader: CallReader | None = None
    thinks: bool = True
    required: Callable[[], Grammar] | None = field(default=None, compare=False, repr=False)  # of calls

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the request, with the grammar of a call where one is required."""
        if self.shown is not None and options.get("grammar") is not None:
            return self._with_answer(options, as_grammar(options["grammar"]))
        if self.grammar is None:
            return dict(options)
        return {**options, **self._raw(), "grammar": self.grammar}

    def _with_answer(self, options: Mapping[str, Any], answer: Grammar) -> dict[str, Any]:
        """The options where the answer has a schema: it is calls, or JSON that fits; required calls alone."""
        if answer.kind not in ("json", "schema"):
            raise InvalidRequest(
                "grammar with tools: a call has a grammar of its own, beside which an answer may have a JSON "
                "schema, and nothing else; leave one of them out",
                param="grammar",
            )
        if self.grammar is not None or self.required is None:
            return self.options({**options, "grammar": None})
        raw, required = self._raw(), self.required

        def make() -> Grammar:
            return calls_or_json(required(), answer.prepared())

        # A schema that is not prepared yet is one of a caller who must not wait here for that.
        return {**options, **raw, "grammar": make() if answer.kind == "json" else make}

    def _raw(self) -> dict[str, Any]:
        """Options for a text whose grammar holds the whole turn."""
        return {} if self.thinks else {"reasoning": False, "reasoning_budget": None}

    def salted(self, prompt: Sequence[int]) -> ToolPlan:
        """The plan for a prompt: the ids of calls in the same answer to it are the same."""
        if self.reader is None:
            return self
        digest = sha256(",".join(map(str, prompt)).encode()).hexdigest()
        return replace(self, reader=self.reader.salted(digest))

    def beside(self, messages: Any) -> ToolPlan:
        """The plan for messages: calls in what others wrote are quoted, where an answer repeats them."""
        return self if self.reader is None else replace(self, reader=self.reader.beside(messages))

    def read_all(self, results: Result | list[Result]) -> Result | list[Result]:
        """As `read`, also for several results."""
        return [self.read(one) for one in results] if isinstance(results, list) else self.read(results)

    def read(self, result: Result, before: Sequence[int] = ()) -> Result:
        """The result with its calls; its text is without them. The answer began with `before`."""
        if self.reader is None:
            return result
        start = max(0, len(before) + result.answer_start)
        tokens = [*before, *result.tokens][start:]
        text, calls = self.reader.read(tokens, self.find_stop(result, before))
        if not calls and not result.text and result.reasoning and result.finish_reason == "stop":
            return self._read_open(result, before)
        if before and calls:
            said, _ = self.reader.read(list(before[start:]))
            same = (i for i, pair in enumerate(zip(text, said, strict=False)) if pair[0] != pair[1])
            text = text[next(same, min(len(text), len(said))) :]
        return replace(result, text=text, tool_calls=calls) if calls else result

    def find_stop(self, result: Result, before: Sequence[int] = ()) -> Stop | None:
        """The stop string that ended an answer, which began with `before`."""
        word = result.stop_reason  # or another reason for an end in a word
        if self.reader is None or result.finish_reason != "stop" or not isinstance(word, str):
            return None
        start = max(0, len(before) + result.answer_start)
        stop = Stop(word, is_shown=result.text.endswith(word))
        return self.reader.place_stop([*before, *result.tokens][start:], stop)

    def _read_open(self, result: Result, before: Sequence[int]) -> Result:
        """The result of an answer that is nothing but reasoning: calls with which it ends are calls.

        Some models call without closing their reasoning first.
        """
        if self.reader is None or not self.reader.has_blocks:
            return result
        said, calls = self.reader.read_open([*before, *result.tokens])
        return replace(result, reasoning=said, tool_calls=calls) if calls else result


def plan_tools(
    template: ChatTemplate | None,
    tokenizer: Tokenizer,
    tools: Tools | None,
    choice: Choice | None,
    parallel: bool | None = None,
) -> ToolPlan:
    """The plan for some tools: one call at most if not `parallel`, by default where one has to be made.

    A model that has to call goes on calling where a grammar lets it: several calls have to be asked for.
    """
    if not isinstance(parallel, (bool, NoneType)):
        raise wrong_value("parallel_tool_calls", parallel, "True, False or None")
    if tools is None:
        if choice is not None and choice != "none":
            raise InvalidRequest(
                f"tool_choice is {choice!r:.100}, but there are no tools to choose from",
                param="tool_choice",
                value=choice,
            )
        return ToolPlan()
    checked = check_tools(tools)
    mode, chosen = check_choice(choice, checked)
    if mode == "none":
        return ToolPlan()
    if template is None:
        raise no_template()
    shown = [tool.description for tool in checked]
    layout = call_format(template, tokenizer)
    reasoning = find_format(template.tool_source) or find_format(template.source)
    is_named = choice not in (None, "auto", "required")  # a function by name is called once
    one = is_named or not (mode == "auto" if parallel is None else parallel)
    reader = CallReader(layout, tokenizer, reasoning, checked, token_hex(8), 1 if one else None)
    thinks = is_mark(layout.thoughts[0][:1]) if layout.thoughts[0] else _is_guided(reasoning, tokenizer)
    required = partial(required_calls, layout, chosen, one, thinks)
    if mode == "auto":
        return ToolPlan(shown, None, reader, thinks, required)
    return ToolPlan(shown, required(), reader, thinks, required)


def _is_guided(reasoning: Format | None, tokenizer: Tokenizer) -> bool:
    """Whether a grammar can start when the reasoning has ended."""
    return reasoning is not None and bool(reasoning.blocks) and Reasoning(reasoning, tokenizer).is_guided


class ToolStream(TextStream):
    """A stream whose `result` has the calls; its tokens are those of the whole text."""

    def __init__(self, engine: Engine, request: Request[Any], plan: ToolPlan) -> None:
        super().__init__(engine, request)
        self._plan = plan

    @property
    def result(self) -> Result:
        """The whole result; runs the rest of the generation first."""
        return self._plan.read(super().result)


# The edge to asyncio: a stream of a chat's tokens whose result has the tool calls.


class AsyncToolStream(AsyncStream):
    """An async stream whose `await stream.result()` has the calls; its tokens are those of the whole text."""

    def __init__(self, worker: Worker, make: Callable[[], tuple[Request[Any], ToolPlan]]) -> None:
        plans: list[ToolPlan] = []

        def begin() -> Request[Any]:
            request, plan = make()
            plans.append(plan)
            return request

        super().__init__(worker, begin)
        self._plans = plans  # one, when the request has been made

    async def result(self) -> Result:
        """The whole result; runs the rest of the generation first."""
        found = await super().result()
        return self._plans[0].read(found)
