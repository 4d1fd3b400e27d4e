"""Grammars for calls: in the format of a model, or as plain JSON."""

from __future__ import annotations

import json
import re

from stretto.structured import Grammar
from stretto.structured.checks import check_size
from stretto.structured.grammar import TURN
from stretto.tools.argument_rules import Rules
from stretto.tools.check import Tool, Tools, check_tools
from stretto.tools.format import CallFormat
from stretto.tools.lark import items, json_value

MAX_CALLS = 8  # in one turn


def call_grammar(tools: Tools) -> Grammar:
    """A call as JSON, for prompts of your own: {"name": …, "arguments": {…}}.

    >>> call_grammar([{"name": "now"}]).kind
    'json'
    """
    calls = []
    definitions: dict[str, object] = {}
    for tool in check_tools(tools):
        arguments = json.loads(tool.schema)
        definitions |= arguments.pop("$defs", {})
        properties = {"name": {"const": tool.name}, "arguments": arguments}
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        )
    schema: dict[str, object] = {"anyOf": calls} if len(calls) > 1 else calls[0]
    return Grammar.json({**schema, "$defs": definitions} if definitions else schema)


def required_calls(layout: CallFormat, tools: list[Tool], one: bool, thinks: bool = False) -> Grammar:
    """One call, or several, of these tools in a format.

    If the model may think before it calls, its reasoning is not part of the grammar, but for formats in which
    it is a message before that of the call.
    """
    start = (layout.opening + layout.before).removeprefix(layout.begun)
    first = start if thinks else layout.block + start
    has_more = not one and layout.joint is not None
    opening, closing = layout.thoughts
    covers = bool(opening) and thinks
    rules = [f"thought: {items(opening)} THOUGHT? {items(closing)}", "THOUGHT: /(?s:.+)/"] if covers else []
    rules += [f"final: {items(layout.final)}"] if covers else []
    calls = f"call (more call){{0,{MAX_CALLS - 1}}}" if has_more else "call"
    rules.append(f"start: {'thought? ' if covers else ''}first {calls} last")
    rules += [f"first: {items(first)}", f"last: {items(layout.after + layout.closing)}"]
    if has_more:
        rules.append(f"more: {items(layout.after + (layout.joint or '') + layout.before)}")
    rules.append("call: " + " | ".join(f"call{i}" for i in range(len(tools))))
    for i, tool in enumerate(tools):
        arguments = Rules(layout.encoding, tool, f"call{i}")
        rules.append(f"call{i}: {items(tool.name + layout.between)} {arguments.start}")
        rules += arguments.lines
    text = "\n".join([*rules, f"ID: /{layout.ids}/"])
    check_size(text, "the description of the tools", "tools")
    return Grammar("tools", text, TURN) if covers else Grammar("tools", text)


def calls_or_json(calls: Grammar, answer: Grammar) -> Grammar:
    """Calls as `required_calls` has them, or JSON that fits the schema of an answer."""
    rules = re.sub("^start:", "calls:", calls.text, count=1, flags=re.MULTILINE)
    said = "thought? final answer" if calls.covers_reasoning else "answer"
    text = f"start: calls | {said}\n{rules}\nanswer: {json_value(answer.text)}"
    return Grammar("tools", text, calls.options)
