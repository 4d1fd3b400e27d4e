"""The part of Go's templates that Ollama's `template` needs: fields, `if`, `else`, `end`, and trimming.

    >>> render("{{ if .System }}<s>{{ .System }}</s>{{ end }}{{ .Prompt }}", {"System": "", "Prompt": "Hi"})
    'Hi'

What comes after `{{ .Response }}` belongs behind the answer, and is left out. Anything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stretto.errors import InvalidRequest

MAX_CHARACTERS = 64 << 10
_ACTION = re.compile(r"\{\{(-\s)?\s*(.*?)\s*(\s-)?\}\}", re.DOTALL)
_FIELD = re.compile(r"\.(\w+)")


def render(template: str, fields: Mapping[str, str]) -> str:
    """The text of a template up to the answer."""
    if len(template) > MAX_CHARACTERS:
        raise _wrong(f"is longer than {MAX_CHARACTERS} characters")
    out: list[str] = []
    shown = [True]  # of the blocks that are open
    trims = False
    at = 0
    for match in _ACTION.finditer(template):
        text = template[at : match.start()]
        text = text.lstrip() if trims else text
        text = text.rstrip() if match[1] else text
        at, trims = match.end(), match[3] is not None
        if all(shown):
            out.append(text)
        action = match[2]
        if action == ".Response":
            if all(shown):
                return "".join(out)
        elif _follow(action, fields, shown) and all(shown):
            out.append(fields[action[1:]])
    if len(shown) != 1:
        raise _wrong("has an if without an end")
    rest = template[at:]
    return "".join([*out, rest.lstrip() if trims else rest])


def _follow(action: str, fields: Mapping[str, str], shown: list[bool]) -> bool:
    """Take an action; True for a field that is to be written."""
    if action.startswith("/*"):
        return False
    if action.startswith("if "):
        shown.append(bool(_value(action[3:].strip(), fields)))
    elif action == "else" and len(shown) > 1:
        shown[-1] = not shown[-1]
    elif action == "end" and len(shown) > 1:
        shown.pop()
    else:
        _value(action, fields)
        return True
    return False


def _value(name: str, fields: Mapping[str, str]) -> str:
    match = _FIELD.fullmatch(name)
    if match is None or match[1] not in fields:
        known = ", ".join(f".{field}" for field in (*fields, "Response"))
        raise _wrong(f"has {name[:60]!r}; known are {known}, if, else and end")
    return fields[match[1]]


def _wrong(reason: str) -> InvalidRequest:
    return InvalidRequest(f"template {reason}", param="template")
