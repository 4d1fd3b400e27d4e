"""Arguments of chat templates: variables such as `enable_thinking` that a template reads beside the messages.

check_arguments(template, {"enable_thinking": False})
thinking_arguments(template, False)           # {'enable_thinking': False}, by the name this template has
thinking_arguments(template, "high")          # {'reasoning_effort': 'high'}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import InvalidRequest, Unsupported
from stretto.text.reasoning import find_format
from stretto.text.template import ChatTemplate

SWITCHES = ("enable_thinking", "thinking")  # the names of the switch, as templates have them
EFFORTS = ("reasoning_effort", "thinking_effort")
BUDGET = "thinking_budget"  # in tokens
NO_EFFORT = "none"
FIELDS = ("reasoning_content", "reasoning", "thinking")  # of a message, as templates and clients name it


def check_arguments(template: ChatTemplate, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as variables of a template; raises for one that the template never reads."""
    check_mapping(arguments)
    for name in arguments:
        if name not in template.variables:
            from difflib import get_close_matches

            near = get_close_matches(name, template.variables, 1)
            known = ", ".join(sorted(template.variables)) or "none"
            hint = f"did you mean {near[0]!r}?" if near else f"it reads {known}"
            raise InvalidRequest(
                f"template: this model's chat template reads no variable {name!r}; {hint}",
                param="template",
                value=name,
            )
    return dict(arguments)


def check_mapping(arguments: object) -> None:
    """Raise unless these are names with values."""
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise InvalidRequest(
            "template must be a mapping from names to values, such as {'enable_thinking': False}, "
            f"not {arguments!r:.100}",
            param="template",
            value=arguments,
        )


def thinking_arguments(template: ChatTemplate, think: bool | str) -> dict[str, Any]:
    """The arguments that turn a model's thinking on or off, or set its effort ("low", "high", "none" …).

    A template with nothing but a switch is switched on by any effort but "none". `Unsupported` where the
    template has no such setting.
    """
    wanted, thinks = think not in (False, NO_EFFORT), find_format(template.source) is not None
    switch = next((name for name in SWITCHES if name in template.variables), None)
    effort = next((name for name in EFFORTS if name in template.variables), None)
    if effort is not None and isinstance(think, str) and (wanted or switch is None):
        return {effort: think}
    if switch is not None:
        return {switch: wanted}
    if wanted and isinstance(think, bool) and thinks:
        return {}  # it thinks anyway
    if not wanted and BUDGET in template.variables:
        return {BUDGET: 0}
    if not wanted and effort is not None and re.search(rf"['\"]{NO_EFFORT}['\"]", template.source):
        return {effort: NO_EFFORT}
    if not wanted and not thinks:
        return {}  # it never thinks
    reason = "the effort of thinking cannot be set" if wanted else "thinking cannot be turned off"
    reason = reason if thinks else "it does not think"
    raise Unsupported(f"this model's chat template has no such setting: {reason}; leave it out")


def with_reasoning(
    messages: Sequence[Mapping[str, Any]], template: ChatTemplate
) -> Sequence[Mapping[str, Any]]:
    """Messages whose reasoning has the name under which the template reads it."""
    if not isinstance(messages, (list, tuple)) or not any(map(_has_reasoning, messages)):
        return messages
    names = [name for name in FIELDS if re.search(rf"(\.|['\"]){name}\b", template.source)]
    if not names:
        return messages
    return [_renamed(message, names[0]) if _has_reasoning(message) else message for message in messages]


def _has_reasoning(message: object) -> bool:
    return isinstance(message, Mapping) and any(message.get(name) for name in FIELDS)


def _renamed(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if message.get(name):
        return message
    if name == "thinking" and message.get("tool_calls") and message.get("content"):
        return message  # gpt-oss takes one of them beside a call
    return {**message, name: next(filter(None, map(message.get, FIELDS)))}
