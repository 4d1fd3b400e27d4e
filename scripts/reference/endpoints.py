"""docs/reference/endpoints.md: every endpoint of the server with its fields, from its OpenAPI document."""

import json
import re
from collections.abc import Iterator
from typing import Any

from starlette.testclient import TestClient

from reference.markdown import MADE, plain, table
from stretto.server.app import create_app
from stretto.server.settings import ModelEntry, Settings

HEAD = f"""# Endpoints

Every endpoint of `stretto serve` with the fields of its request, from the server's OpenAPI document. A
running server has that document at `/openapi.json`, as a page at `/docs`, and its [web page](page.md) at `/`.
[The server](server.md) says how to run it, and who may use what.

{MADE}
"""

LARGE = 2**31  # bounds beyond this one are those of the number type


def document() -> dict[str, Any]:
    """The OpenAPI document, as a running server answers."""
    server = create_app(Settings((ModelEntry.parse("smollm2"),)))
    answer = TestClient(server, base_url="http://127.0.0.1").get("/openapi.json")
    found: dict[str, Any] = answer.json()
    return found


def page() -> str:
    """The text of the page."""
    openapi = document()
    operations: dict[str, list[str]] = {}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            text = "\n".join(_operation(method, path, operation, openapi))
            operations.setdefault(operation["tags"][0], []).append(text)
    parts = [HEAD]
    for tag, texts in operations.items():
        parts += [f"## {tag}", *texts]
    parts += ["## Objects", *_objects(openapi)]
    return "\n".join(parts).rstrip() + "\n"


def _operation(method: str, path: str, operation: dict[str, Any], openapi: dict[str, Any]) -> Iterator[str]:
    yield from (f"\n### {method.upper()} {path}", "", plain(operation.get("description", "")), "")
    rows = [
        (f"`{one['name']}`", _kind(one["schema"]), _meaning(one), f"in the {one['in']}")
        for one in operation.get("parameters", [])
    ]
    if rows:
        yield from (table(("parameter", "type", "meaning", "where"), rows), "")
    for schema in _bodies(operation):
        names = _references(schema)
        if not names:
            yield from (_fields(schema), "")
        for name in names:
            yield from (_fields(openapi["components"]["schemas"][name]), "")


def _bodies(operation: dict[str, Any]) -> list[dict[str, Any]]:
    content = operation.get("requestBody", {}).get("content", {})
    return [one["schema"] for one in content.values()]


def _references(schema: dict[str, Any]) -> list[str]:
    options = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return [option["$ref"].rsplit("/", 1)[-1] for option in options if "$ref" in option]


def _objects(openapi: dict[str, Any]) -> Iterator[str]:
    """The objects that fields refer to; bodies of requests stand at their endpoints."""
    operations = [one for methods in openapi["paths"].values() for one in methods.values()]
    bodies = {name for one in operations for schema in _bodies(one) for name in _references(schema)}
    for name, schema in sorted(openapi["components"]["schemas"].items()):
        if name not in bodies and "properties" in schema:
            summary = plain(str(schema.get("description", "")).split("\n\n")[0])
            yield from (f"\n### {name}", "", summary, "", _fields(schema), "")


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        (f"`{name}`", _kind(field), _default(name, field, required), _meaning(field))
        for name, field in schema.get("properties", {}).items()
    ]
    return table(("field", "type", "default", "meaning"), rows)


def _kind(field: dict[str, Any]) -> str:
    """The type of a field in words, with its bounds."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if field.get("anyOf") or field.get("oneOf"):
        return " or ".join(dict.fromkeys(_kind(one) for one in _choices(field)))
    if "const" in field:
        return f"`{field['const']!r}`"
    if "enum" in field:
        return ", ".join(f"`{value!r}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum")
    ends = f" from {low:g}" if low is not None and low > -LARGE else ""
    return str(field.get("type", "any")) + ends + (f" to {high:g}" if high is not None else "")


def _choices(field: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The types that a field may have, without null."""
    options = field.get("anyOf") or field.get("oneOf")
    if options:
        for one in options:
            yield from _choices(one)
    elif field.get("type") != "null":
        yield field


def _default(name: str, field: dict[str, Any], required: list[str]) -> str:
    if name in required:
        return "required"
    default = field.get("default")
    return "" if default is None or default == [] else f"`{json.dumps(default)}`"


def _meaning(field: dict[str, Any]) -> str:
    inner = " ".join(one["description"] for one in field.get("anyOf", []) if "description" in one)
    return plain(re.sub(r"\s+", " ", field.get("description") or inner))
