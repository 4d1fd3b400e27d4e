"""`/docs`: the OpenAPI document as a page, made here. It loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "h2{border-top:1px solid #ccc;padding-top:1em}code{background:#f2f2f2;padding:0 .2em}"
    "table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:.15em 1em .15em 0}"
    "summary{cursor:pointer}"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(document: dict[str, Any]) -> str:
    """The page."""
    return "\n".join(_page(document))


def _page(document: dict[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>"
    yield f"<style>{STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>"
    yield f"<p>{escape(info.get('description', ''))} For programs: <a href=openapi.json>openapi.json</a>.</p>"
    tag = None
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation.get("tags", [None])[0] != tag:
                tag = operation["tags"][0]
                yield f"<h2>{escape(tag)}</h2>"
            summary = escape(operation.get("description", "").split("\n\n")[0])
            yield f"<details><summary><code>{method.upper()} {escape(path)}</code> {summary}</summary>"
            yield from _fields(document, operation)
            yield "</details>"
    yield "<h2>Objects</h2>"
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        summary = escape(_summary(schema))
        yield f"<details id={escape(name)}><summary><code>{escape(name)}</code> {summary}</summary>"
        yield from _table(schema)
        yield "</details>"
    yield "</html>"


def _fields(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", []):
        yield f"<p><code>{escape(parameter['name'])}</code> in the {escape(parameter['in'])}</p>"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in body:
        schema = document["components"]["schemas"][body["$ref"].rsplit("/", 1)[-1]]
        yield from _table(schema)


def _table(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", [])
    yield "<table>"
    for name, field in schema.get("properties", {}).items():
        must = ", required" if name in required else ""
        yield (
            f"<tr><td><code>{escape(name)}</code><td>{_kind(field)}{must}"
            f"<td>{escape(field.get('description', '') or _inner(field))}"
        )
    yield "</table>"


def _kind(field: dict[str, Any]) -> str:
    """The type of a field, in words."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[-1]
        return f"<a href=#{escape(name)}>{escape(name)}</a>"
    if options := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(dict.fromkeys(_kind(option) for option in options if option.get("type") != "null"))
    if "const" in field:
        return escape(repr(field["const"]))
    if "enum" in field:
        return escape(", ".join(map(repr, field["enum"])))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum")
    ends = f" from {low:g}" if low is not None else ""
    ends += f" to {high:g}" if high is not None else ""
    return escape(f"{field.get('type', 'any')}{ends}")


def _inner(field: dict[str, Any]) -> str:
    """The description of the one type that an optional field has."""
    return " ".join(option["description"] for option in field.get("anyOf", []) if "description" in option)


def _summary(schema: dict[str, Any]) -> str:
    return str(schema.get("description", "")).split("\n\n")[0]
