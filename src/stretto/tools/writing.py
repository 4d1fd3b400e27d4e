"""Calls written in a format: for templates that leave them out, and to show a model how to call."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.tools.format import ID, CallFormat, Elements, Encoding, Literals, Tagged
from stretto.tools.types import type_name

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
        short = hashlib.sha256(given.encode()).hexdigest()[:9]
        given = short if re.fullmatch(layout.ids, short) else str(number)
    text = _arguments(layout.encoding, arguments)
    before, between, after = (
        part.replace(ID, given) for part in (layout.before, layout.between, layout.after)
    )
    return before + name + between + text + after


def _arguments(encoding: Encoding, arguments: Mapping[str, Any]) -> str:
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
