"""What a caller gives to a chat template, as this template takes it: arguments, reasoning, parts of content.

check_arguments(template, {"enable_thinking": False})   # variables that it reads beside the messages
thinking_arguments(template, False)           # {'enable_thinking': False}, by the name this template has
thinking_arguments(template, "high")          # {'reasoning_effort': 'high'}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import Unsupported, param_error, wrong_value
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
            raise param_error(
                "template", f"this model's chat template reads no variable {name!r}; {hint}", name
            )
    return dict(arguments)


def check_mapping(arguments: object) -> None:
    """Raise unless these are names with values."""
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise wrong_value(
            "template", arguments, "a mapping from names to values, such as {'enable_thinking': False}"
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
    return [_rename(message, names[0]) if _has_reasoning(message) else message for message in messages]


def _has_reasoning(message: object) -> bool:
    return isinstance(message, Mapping) and any(message.get(name) for name in FIELDS)


def _rename(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if message.get(name):
        return message
    if name == "thinking" and message.get("tool_calls") and message.get("content"):
        return message  # gpt-oss takes one of them beside a call
    return {**message, name: next(filter(None, map(message.get, FIELDS)))}


# The parts of a message's content: those that nothing here reads are refused by name.
#
# A template that only writes texts would show a list of parts as Python does, brackets and all, so texts are
# joined for it.

IMAGES = ("image", "image_url", "input_image")
SOUNDS = ("audio", "input_audio", "audio_url")
INSTEAD = {
    "audio": 'this model hears no sound; load one that hears, with vision="mmproj.gguf", or let stretto '
    "transcribe write down what is said",
    "video": "films are not taken; give some of their frames as images, each behind a text with its time",
    "file": "files are not opened for a message; give their text as a text part",
}
_KINDS = {
    **dict.fromkeys(SOUNDS, "audio"),
    **dict.fromkeys(("video", "input_video", "video_url"), "video"),
    **dict.fromkeys(("file", "input_file", "document"), "file"),
}
_KNOWS_TYPES = re.compile(r"""\.type\b|\[\s*['"]type['"]\s*\]|get\(\s*['"]type['"]""")


def with_known_parts(messages: Sequence[Any], source: str, hears: bool = False) -> Sequence[Any]:
    """Messages that a template can write; `InvalidRequest` names the part that it cannot.

    Sounds are for a model that hears.

    >>> with_known_parts([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "{{ content }}")
    [{'role': 'user', 'content': 'Hi'}]
    """
    if not isinstance(messages, (list, tuple)) or not any(map(_has_parts, messages)):
        return messages
    knows_types = _KNOWS_TYPES.search(source) is not None
    changed = []
    for index, message in enumerate(messages):
        if _has_parts(message):
            parts = message["content"]
            for i, part in enumerate(parts):
                _check(part, f"messages[{index}].content[{i}]", source, hears)
            texts = [_text(part) for part in parts]
            if not knows_types and all(text is not None for text in texts):
                message = {**message, "content": "\n".join(filter(None, texts))}
        changed.append(message)
    return changed


def _has_parts(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("content"), (list, tuple))


def _text(part: Any) -> str | None:
    """The text of a part that is nothing else."""
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def _check(part: Any, where: str, source: str, hears: bool) -> None:
    """Raise for a part with a type that is not taken; what has no type is checked elsewhere."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind in IMAGES or kind == "text" or (hears and kind in SOUNDS):
        return
    if kind in _KINDS:
        raise param_error(where, f"{kind!r}: {INSTEAD[_KINDS[kind]]}", kind)
    if not re.search(rf"['\"]{re.escape(kind)}['\"]", source):
        known = "give 'text', or 'image_url' to a model that sees"
        raise param_error(
            where, f"the model's chat template knows no parts of type {kind!r:.60}; {known}", kind
        )
