"""The caller's side of a chat template: messages, tools and variables, checked and copied as plain data.

A template gets none of the caller's objects, only texts, numbers, lists and dicts made here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from stretto.errors import param_error
from stretto.text.guards import measure, pack_sized

MAX_DEPTH = 64
MAX_ITEMS = 300_000
MAX_CHARACTERS = 64_000_000

PRIVATE = re.compile("[\U000f0000-\U000ffffd\U00100000-\U0010fffd]")
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_INSTEAD_OF_CONTENT = ("tool_calls", "reasoning_content", "reasoning", "thinking", "tool_responses")


def check_messages(messages: object) -> None:
    """Check that this is a conversation: a list of mappings, each with a role and a content."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise param_error(
            "messages",
            f"{_shown(messages)} is not a conversation; give a list of messages such as "
            "{'role': 'user', 'content': 'Hello'}, at least one",
            messages,
        )
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise param_error(where, f"{_shown(message)} is not a mapping with 'role' and 'content'", message)
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise param_error(
                f"{where}.role",
                f"{_shown(role)} is not a role; give a word such as 'system', 'user', 'assistant' or 'tool'",
                role,
            )
        if content is None:
            if not any(message.get(name) for name in _INSTEAD_OF_CONTENT):
                raise param_error(f"{where}.content", "missing; give a text or a list of parts")
        elif not isinstance(content, (str, list, tuple, Mapping)):
            raise param_error(
                f"{where}.content", f"{_shown(content)} is not a text or a list of parts", content
            )
        elif isinstance(content, (list, tuple)) and not all(
            isinstance(part, (str, Mapping)) for part in content
        ):
            raise param_error(
                f"{where}.content",
                "a part is neither a text nor a mapping such as {'type': 'text', 'text': 'Hello'}",
                content,
            )


class Intake:
    """Copies data as plain data; counts items and characters.

    >>> Intake().plain(("a", {"b": 1}), "tools")
    ['a', {'b': 1}]
    """

    def __init__(self) -> None:
        self.characters = 0
        self.items = 0
        self.private: set[str] = set()  # private-use characters in the data

    def plain(self, value: Any, *path: str | int) -> Any:
        """Return a copy in plain types; `path` names the value in error messages."""
        self.items += 1
        if self.items > MAX_ITEMS or self.characters > MAX_CHARACTERS:
            raise param_error(_shown_path(path), "more data than a chat template takes; send less")
        if isinstance(value, str):
            return self._text(value, path)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            if value.bit_length() > 1024:
                raise param_error(_shown_path(path), "a number of over 1024 bits; send it as a text")
            return int(value)
        if isinstance(value, float):
            return float(value)
        if len(path) > MAX_DEPTH:
            raise param_error(_shown_path(path), f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, (list, tuple)):
            items = [self.plain(item, *path, i) for i, item in enumerate(value)]
            return pack_sized(items, measure(items))
        if isinstance(value, Mapping):
            pairs = {}
            for key, item in value.items():
                if not isinstance(key, str):
                    raise param_error(_shown_path(path), f"the key {_shown(key)} is not a text")
                pairs[self._text(key, path)] = self.plain(item, *path, key)
            return pack_sized(pairs, measure(pairs))
        raise param_error(_shown_path(path), f"{_shown(value)} is not a text, number, list or mapping")

    def _text(self, value: str, path: tuple[str | int, ...]) -> str:
        self.characters += len(value)
        if not value.isascii():
            if _SURROGATE.search(value):
                raise param_error(_shown_path(path), "half a surrogate pair is no character; remove it")
            self.private.update(PRIVATE.findall(value))
        return str.__str__(value)


def walk(value: Any, change: Callable[[str, str], str], key: str = "") -> Any:
    """Return plain data with every string changed by `change(text, its key)`, key "*" for keys."""
    if isinstance(value, str):
        return change(value, key)
    if isinstance(value, list):
        items = [walk(item, change, key) for item in value]
        return pack_sized(items, measure(items))
    if isinstance(value, dict):
        pairs = {change(name, "*"): walk(item, change, name) for name, item in value.items()}
        return pack_sized(pairs, measure(pairs))
    return value


def _shown_path(path: tuple[str | int, ...]) -> str:
    """Return a path in the notation `messages[0].content`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{ascii(step)[1:-1]}" for step in path)
    return "".join(steps).lstrip(".")[:200]


def _shown(value: object) -> str:
    """Return a short, safe description of an invalid value."""
    if isinstance(value, (str, int, float, bool, type(None))):
        shown = ascii(value) if not isinstance(value, int) or value.bit_length() < 64 else "a large number"
        return shown if len(shown) < 60 else shown[:60] + "…"
    return f"an empty {type(value).__name__}" if value in ([], (), {}) else f"a {type(value).__name__}"
