"""Modelfiles, which older clients of Ollama send to `/api/create`: instructions as fields of a request."""

from __future__ import annotations

import re
from typing import Any

from stretto.server.errors import ApiError

IGNORED = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|$)")
INSTRUCTION = re.compile(
    r"[ \t]*(?:(?P<pair>PARAMETER|MESSAGE)[ \t]+(?P<key>\S+)|(?P<name>[A-Z]+))[ \t]+"
    r'(?P<value>"""(?:[^"]|"(?!""))*"""|"[^"\n]*"|[^\n]*)[ \t]*(?:\n|$)',
    re.IGNORECASE,
)
TEXTS = ("from", "system", "template", "license")


def parse_modelfile(text: str) -> dict[str, Any]:
    """The fields of a request to `/api/create`.

    >>> parse_modelfile("FROM smollm2\\nPARAMETER temperature 0.5\\nSYSTEM You are Mario.")
    {'from': 'smollm2', 'parameters': {'temperature': 0.5}, 'system': 'You are Mario.'}
    """
    found: dict[str, Any] = {}
    at = 0
    while at < len(text):
        if ignored := IGNORED.match(text, at):
            at = ignored.end()
            continue
        line = INSTRUCTION.match(text, at)
        if line is None:
            raise _wrong(f"{text[at:].splitlines()[0][:80]!r} is no instruction")
        if line["value"].startswith('"""') and not (
            len(line["value"]) >= 6 and line["value"].endswith('"""')
        ):
            raise _wrong(f"{line['value'][:80]!r} has no closing quotes")
        at, name, value = line.end(), (line["pair"] or line["name"]).lower(), _unquoted(line["value"])
        if name == "message":
            found.setdefault("messages", []).append({"role": line["key"].lower(), "content": value})
        elif name == "parameter" and line["key"] == "stop":
            found.setdefault("parameters", {}).setdefault("stop", []).append(value)
        elif name == "parameter":
            found.setdefault("parameters", {})[line["key"]] = _typed(value)
        elif name in TEXTS:
            found[name] = value
        else:
            raise _wrong(f"{name.upper()} is not supported here")
    if "from" not in found:
        raise _wrong("FROM is missing")
    return found


def _unquoted(value: str) -> str:
    for quote in ('"""', '"'):
        if len(value) >= 2 * len(quote) and value.startswith(quote) and value.endswith(quote):
            return value[len(quote) : -len(quote)]
    return value.strip()


def _typed(value: str) -> int | float | bool | str:
    """The number or the truth value that a parameter is, as the options of a request have it."""
    if value in ("true", "false"):
        return value == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def _wrong(why: str) -> ApiError:
    return ApiError(400, f"modelfile: {why}", param="modelfile", code="invalid_value")
