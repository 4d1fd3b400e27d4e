"""Messages in the shape that a template takes: calls, their answers, and tools that it does not show itself.

A template's needs are found by rendering short conversations, once for each template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

from stretto.errors import StrettoError
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.tools.finding import PROBE, Shown, call_format, in_system
from stretto.tools.format import GENERIC, ID, CallFormat, Elements, Encoding, Literals, Tagged, spell_marks
from stretto.tools.tag_reading import type_name

# Calls written in a format: for templates that leave them out, and to show a model how to call.

Call = tuple[str, Mapping[str, Any], str]  # name, arguments, id


def write_calls(layout: CallFormat, calls: Sequence[Call]) -> str:
    """Calls as a model writes them."""
    joint = "\n" if layout.joint is None else layout.joint
    written = [write_call(layout, call, number) for number, call in enumerate(calls)]
    return layout.opening + joint.join(written) + layout.closing


def write_call(layout: CallFormat, call: Call, number: int = 0) -> str:
    """One call."""
    name, arguments, given = call
    if not re.fullmatch(layout.ids, given):
        short = _short(given)
        given = short if re.fullmatch(layout.ids, short) else str(number)
    text = _write_arguments(layout.encoding, arguments)
    before, between, after = (
        part.replace(ID, given) for part in (layout.before, layout.between, layout.after)
    )
    return before + name + between + text + after


def _write_arguments(encoding: Encoding, arguments: Mapping[str, Any]) -> str:
    if encoding is None:
        return dumps(arguments)
    if isinstance(encoding, Tagged):
        return "".join(_tag(encoding, key, value) for key, value in arguments.items())
    if isinstance(encoding, Elements):
        return _elements(encoding, arguments)
    return encoding.comma.join(
        f"{key}{encoding.assign}{_literal(encoding, value)}" for key, value in arguments.items()
    )


def _tag(tags: Tagged, key: str, value: Any) -> str:
    if isinstance(value, str):
        return tags.key + key + tags.value + value + tags.end
    return tags.key + key + tags.value_of_type(type_name(value)) + dumps(value) + tags.end


def _elements(elements: Elements, value: Any) -> str:
    """A value as the content of its element."""
    mark = elements.mark
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, (list, tuple)):
        pairs = [(elements.item, one) for one in value]
    else:
        return value if isinstance(value, str) else dumps(value)
    return "".join(f"{mark}<{key}>{_elements(elements, one)}{mark}</{key}>" for key, one in pairs)


def _literal(encoding: Literals, value: Any) -> str:
    quote = encoding.quote
    if not quote:
        return dumps(value)
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_literal(encoding, one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_literal(encoding, one) for one in value) + "]"
    return dumps(value)


def dumps(value: Any) -> str:
    """A value as JSON."""
    return json.dumps(value, ensure_ascii=False)


Messages = Sequence[Mapping[str, Any]]

_USER = {"role": "user", "content": "x"}
_NAME, _KEY, _VALUE, _ANSWER = "stretto_function", "stretto_key", "stretto_value", "stretto_answer"
_ID = "Stretto01"
_LONG_ID = "call_Stretto0123456789"


@dataclass(frozen=True)
class Shape:
    """What a template does with calls.

    It takes arguments as text if `as_text`, or as objects; it leaves calls out unless `has_calls`, and their
    answers unless `has_answers`; it takes one call a turn unless `has_several`, and ids of nine letters and
    digits alone if `has_short_ids`.
    """

    as_text: bool = False
    has_several: bool = True
    has_calls: bool = True
    has_answers: bool = True
    has_short_ids: bool = False


_shapes: WeakKeyDictionary[ChatTemplate, Shape] = WeakKeyDictionary()


def fit_calls(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Messages, tools: Shown | None
) -> tuple[Messages, Shown | None]:
    """Messages and tools as the template takes them."""
    if not isinstance(messages, (list, tuple)):
        return messages, tools
    has_calls = any(_is_tool_message(message) for message in messages)
    if not tools and not has_calls:
        return messages, tools
    layout = call_format(template, tokenizer) if tools else None
    if has_calls:
        messages = _with_calls(template, tokenizer, messages, layout)
    if not tools or layout is None:
        return messages, tools
    if layout.is_described:
        return _with_system(messages, description(spell_marks(layout, tokenizer), tools)), None
    if in_system(template):
        return _with_tools_in_system(messages, tools), tools
    return messages, tools


def description(layout: CallFormat, tools: Shown) -> str:
    """Tools, and how to call them, for a model whose template shows none."""
    lines = [dumps(tool.get("function", tool)) for tool in tools]
    example = write_call(layout, ("function_name", {"argument_name": "value"}, "000000000"))
    return (
        "You can call these functions, each described by a JSON object with a schema of its parameters:\n"
        + "\n".join(lines)
        + "\n\nTo call a function, answer with nothing but the call, in this format:\n"
        + layout.opening
        + example
        + layout.closing
        + "\nIf no function is needed, answer as usual."
    )


def find_shape(template: ChatTemplate) -> Shape:
    """What a template does with calls and their answers."""
    found = _shapes.get(template)
    if found is None:
        found = _shapes[template] = _probe(template)
    return found


def _probe(template: ChatTemplate) -> Shape:
    for as_text in (False, True):
        text = _rendered(template, as_text)
        has_name = text is not None and (
            _NAME in text or _ID in text
        )  # some write the id, which has the name
        if text is None or not has_name or _VALUE not in text or f"{{'{_KEY}'" in text:
            continue
        if f'\\"{_KEY}' in text and not as_text:
            continue  # it writes JSON as a string
        several = _rendered(template, as_text, n=2)
        is_short = _rendered(template, as_text, given=_LONG_ID) is None
        has_several = several is not None and (f"{_NAME}2" in several or "Stretto02" in several)
        return Shape(as_text, has_several, True, _ANSWER in text, is_short)
    return Shape(has_calls=False, has_answers=_ANSWER in (_rendered(template, None) or ""))


def _rendered(template: ChatTemplate, as_text: bool | None, n: int = 1, given: str = _ID) -> str | None:
    """A conversation with `n` calls, or without them if `as_text` is None, and answers."""
    arguments: Any = {_KEY: _VALUE}
    arguments = json.dumps(arguments) if as_text else arguments
    turn: dict[str, Any] = {"role": "assistant", "content": "" if as_text is not None else "y"}
    answers = []
    for number in range(1, n + 1):
        name, given = _NAME + (str(number) if number > 1 else ""), given[:-1] + str(number)
        if as_text is not None:
            function = {"name": name, "arguments": arguments}
            turn.setdefault("tool_calls", []).append({"id": given, "type": "function", "function": function})
        answers.append({"role": "tool", "name": name, "tool_call_id": given, "content": _ANSWER})
    if n > 1:
        answers = [{**answer, "name": _NAME} for answer in answers]  # so that only the call has the name
    for tools in ([PROBE], None):
        with suppress(StrettoError):
            return template.render([_USER, turn, *answers], tools=tools)
    return None


def _with_calls(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Messages, layout: CallFormat | None
) -> Messages:
    shape = find_shape(template)
    writes = GENERIC if layout is None else spell_marks(layout, tokenizer)
    if shape.has_short_ids:
        messages = [_with_short_ids(message) for message in messages]
    if not shape.has_several:
        messages = list(_one_by_one(messages))
    if "{name}" in writes.whole_id:
        messages = _with_named_ids(messages, writes)
    if "tool_responses" in template.tool_source and "'tool'" not in template.tool_source:
        messages = _with_responses(messages)
    elif not shape.has_answers:
        messages = _with_joined_answers(messages)
    return list(_fitted(messages, shape, writes))


def _with_named_ids(messages: Messages, layout: CallFormat) -> Messages:
    """Messages whose ids have the names of the functions, for templates that write the ids alone."""
    names: dict[Any, str] = {}
    found: list[Mapping[str, Any]] = []

    def rename(call: Mapping[str, Any]) -> Mapping[str, Any]:
        name = str(call.get("function", call).get("name"))
        given = layout.whole_id.replace("{name}", name).replace(ID, str(len(names)))
        names[call.get("id", len(names))] = given
        return {**call, "id": given}

    for message in messages:
        if isinstance(message, Mapping) and message.get("tool_calls"):
            message = _change_calls(message, rename)
        elif isinstance(message, Mapping) and message.get("tool_call_id") in names:
            message = {**message, "tool_call_id": names[message["tool_call_id"]]}
        found.append(message)
    return found


def _with_responses(messages: Messages) -> Messages:
    """Messages in which answers are part of the turn that has called, as Gemma 4's templates take them."""
    found: list[Mapping[str, Any]] = []
    for message in messages:
        last = found[-1] if found else {}
        if message.get("role") == "tool" and last.get("tool_calls"):
            names = {call.get("id"): call.get("function", {}).get("name") for call in last["tool_calls"]}
            name = message.get("name") or names.get(message.get("tool_call_id")) or "function"
            answer = {"name": name, "response": _arguments(message.get("content"), as_text=False)}
            found[-1] = {**last, "tool_responses": [*last.get("tool_responses", ()), answer]}
        else:
            found.append(message)
    return found


def _with_joined_answers(messages: Messages) -> Messages:
    """Messages with the answers to several calls in one: turns of the user may have to alternate."""
    found: list[Mapping[str, Any]] = []
    for message in messages:
        is_answer = isinstance(message, Mapping) and message.get("role") == "tool"
        last = found[-1] if found else {}
        if is_answer and last.get("is_result"):
            found[-1] = {**last, "content": f"{last['content']}\n{_result(message)}"}
        elif is_answer:
            found.append({"role": "user", "content": _result(message), "is_result": True})
        elif (
            last.get("is_result")
            and message.get("role") == "user"
            and isinstance(message.get("content"), str)
        ):
            found[-1] = {**message, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            found.append(message)
    return [{key: value for key, value in one.items() if key != "is_result"} for one in found]


def _result(message: Mapping[str, Any]) -> str:
    name = message.get("name") or message.get("tool_name") or "function"
    return f"Result of {name}: {message.get('content')}"


def _with_short_ids(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose ids are short, for templates that take no others."""
    if isinstance(message.get("tool_call_id"), str):
        return {**message, "tool_call_id": _short(message["tool_call_id"])}
    return _change_calls(message, lambda call: {**call, "id": _short(str(call.get("id")))})


def _change_calls(
    message: Mapping[str, Any], change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """A message with each of its calls changed."""
    calls = message.get("tool_calls")
    if not isinstance(calls, (list, tuple)):
        return message
    return {**message, "tool_calls": [change(one) if isinstance(one, Mapping) else one for one in calls]}


def _short(given: str) -> str:
    return given if re.fullmatch("[a-zA-Z0-9]{9}", given) else sha256(given.encode()).hexdigest()[:9]


def _one_by_one(messages: Messages) -> Iterator[Mapping[str, Any]]:
    """Messages with one call each, and the answer to it behind it."""
    waiting: dict[Any, Mapping[str, Any]] = {}  # messages with a call, by its id
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        if isinstance(calls, (list, tuple)) and len(calls) > 1:
            yield from waiting.values()
            alone = {**message, "content": ""}
            waiting = {
                _id(call, n): {**(alone if n else message), "tool_calls": [call]}
                for n, call in enumerate(calls)
            }
            continue
        if waiting and message.get("role") == "tool":
            given = message.get("tool_call_id")
            yield waiting.pop(given if given in waiting else next(iter(waiting)))
        else:
            yield from waiting.values()
            waiting = {}
        yield message
    yield from waiting.values()


def _id(call: Any, number: int) -> Any:
    given = call.get("id") if isinstance(call, Mapping) else None
    return given if isinstance(given, str) else number


def _fitted(messages: Messages, shape: Shape, layout: CallFormat) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        if not _is_tool_message(message):
            yield message
        elif message.get("tool_calls"):
            yield _with_arguments(message, shape.as_text) if shape.has_calls else _written(message, layout)
        else:
            yield message


def _is_tool_message(message: object) -> bool:
    return isinstance(message, Mapping) and bool(message.get("tool_calls") or message.get("role") == "tool")


def _with_arguments(message: Mapping[str, Any], as_text: bool) -> Mapping[str, Any]:
    """A message whose calls have their arguments as text, or as objects."""

    def convert(call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function")
        if not isinstance(function, Mapping) or "arguments" not in function:
            return call
        return {**call, "function": {**function, "arguments": _arguments(function["arguments"], as_text)}}

    return _change_calls(message, convert)


def _arguments(arguments: Any, as_text: bool) -> Any:
    if as_text and not isinstance(arguments, str):
        return dumps(arguments)
    if not as_text and isinstance(arguments, str):
        with suppress(ValueError):  # a text that is not JSON is passed on as it is
            return json.loads(arguments)
    return arguments


def _written(message: Mapping[str, Any], layout: CallFormat) -> Mapping[str, Any]:
    """A message whose calls are part of its text, for a template that leaves them out."""
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function", call)
        arguments = _arguments(function.get("arguments"), as_text=False)
        given = call.get("id")
        arguments = arguments if isinstance(arguments, Mapping) else {}
        calls.append((str(function.get("name")), arguments, given if isinstance(given, str) else ""))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    text = message.get("content")
    said = f"{text}\n" if isinstance(text, str) and text else ""
    return {**rest, "content": said + write_calls(layout, calls)}


def _with_system(messages: Messages, text: str) -> Messages:
    """Messages with a text at the end of the system message."""
    first = messages[0] if messages else {}
    is_system = isinstance(first, Mapping) and first.get("role") in ("system", "developer")
    if is_system and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _with_tools_in_system(messages: Messages, tools: Shown) -> Messages:
    """Messages whose system message has the tools as JSON, where a template looks for them there."""
    first = messages[0] if messages else {}
    shown = dumps([tool.get("function", tool) for tool in tools])
    if isinstance(first, Mapping) and first.get("role") == "system":
        return [{**first, "tools": shown}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": shown}, *messages]
