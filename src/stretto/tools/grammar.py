"""Grammars for calls: in the format of a template, or as plain JSON."""

from __future__ import annotations

import json
import re

from stretto.structured import Grammar
from stretto.structured.checks import check_size
from stretto.structured.grammar import WHITESPACE
from stretto.tools.check import Tool, Tools, check_tools
from stretto.tools.format import ID, LAST_MARK, MARKS, CallFormat

MAX_CALLS = 8  # in one turn


def call_grammar(tools: Tools) -> Grammar:
    """A call as JSON, for models whose template has no tools: {"name": …, "arguments": {…}}.

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
    """One call, or several, of these tools as the template writes them.

    If the model may think before it calls, its reasoning is not part of the grammar.
    """
    before = layout.before if thinks else layout.block + layout.before
    more_calls = "" if one or layout.joint is None else f" (joint call){{0,{MAX_CALLS - 1}}}"
    rules = [f"start: before call{more_calls} after"]
    rules += [f"before: {_items(before)}", f"after: {_items(layout.after)}"]
    if more_calls:
        rules.append(f"joint: {_items(layout.joint or '')}")
    rules.append("call: " + " | ".join(f"call{i}" for i in range(len(tools))))
    for i, tool in enumerate(tools):
        rules.append(f"call{i}: {_items(tool.name + layout.between)} %json {_schema(tool)}")
    text = "\n".join([*rules, "ID: /[a-zA-Z0-9]{9}/"])
    check_size(text, "the description of the tools", "tools")
    return Grammar("tools", text)


def _schema(tool: Tool) -> str:
    options = json.dumps(WHITESPACE["spaced"])
    return f'{{"x-guidance": {options}, {tool.schema.removeprefix("{")}'


def _items(text: str) -> str:
    """A text in Lark's notation: strings, special tokens by their ids, and ids of calls."""
    special = rf"[{chr(MARKS)}-{chr(LAST_MARK)}]"
    items = []
    for piece in re.split(rf"({special}|{ID}\d)", text):
        if re.fullmatch(special, piece):
            items.append(f"<[{ord(piece) - MARKS}]>")
        elif piece.startswith(ID):
            items.append("ID")
        elif piece:
            items.append(json.dumps(piece, ensure_ascii=False))
    return " ".join(items) or '""'
