"""The format of a model's tool calls: declared for its family, learned from its template, or plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from stretto.errors import InvalidRequest
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.tools.format import CallFormat, bind
from stretto.tools.formats import AFTER_LEARNING, DECLARED, GENERIC
from stretto.tools.learning import learn

Shown = Sequence[Mapping[str, Any]]

_found: WeakKeyDictionary[ChatTemplate, CallFormat] = WeakKeyDictionary()
_USER = {"role": "user", "content": "x"}
PROBE: Mapping[str, Any] = {  # a tool by which templates are tried
    "type": "function",
    "function": {
        "name": "stretto_tool",
        "description": "x",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "string", "description": "x"}},
            "required": ["x"],
        },
    },
}


def call_format(template: ChatTemplate, tokenizer: Tokenizer) -> CallFormat:
    """The format of a model's calls, in terms of its vocabulary."""
    found = _found.get(template)
    if found is None:
        found = _found[template] = _find(template, tokenizer)
    return found


def in_system(template: ChatTemplate) -> bool:
    """Whether a template reads tools from the system message, as Phi-4-mini's does."""
    source = template.tool_source
    return "message['tools']" in source and "<|tool|>" in source


def _find(template: ChatTemplate, tokenizer: Tokenizer) -> CallFormat:
    source = template.tool_source
    declared = next((layout for layout in DECLARED if layout.fits(source)), None)
    if not in_system(template) and not _shows_tools(template):
        return bind(GENERIC if declared is None else replace(declared, is_described=True), tokenizer)
    if declared is not None:
        return _begun(bind(declared, tokenizer), template)
    try:
        return learn(template, tokenizer, [PROBE])
    except InvalidRequest:
        fitting = (layout for layout in AFTER_LEARNING if layout.fits(source))
        return bind(next(fitting, GENERIC), tokenizer)


def _shows_tools(template: ChatTemplate) -> bool:
    """Whether a prompt with tools differs from one without."""
    try:
        prompt = template.parts([_USER], tools=[PROBE])
    except InvalidRequest:
        return False
    try:
        return prompt != template.parts([_USER])
    except InvalidRequest:
        return True  # it can only do with tools


def _begun(layout: CallFormat, template: ChatTemplate) -> CallFormat:
    """A format that knows whether a prompt ends with the beginning of a call."""
    start = (layout.opening or layout.before).strip()
    with suppress(InvalidRequest):
        end = template.parts([_USER], tools=[PROBE])[-1:]
        if start and isinstance(end[0], str) and end[0].rstrip().endswith(start):
            return replace(layout, begun=start)
    return layout
