"""Dynamic references in JSON schemas: a copy of a schema for each scope in which it is used.

A `$dynamicRef` leads to the outermost resource, of those that are entered on the way to it, which has the
`$dynamicAnchor`. So what a schema means depends on the way; there are as many meanings as there are scopes, a
scope being which resource each anchor belongs to. Each schema that is referred to becomes a definition for
each scope it is used in, and references within it lead to definitions for its scope. Used by `normalised`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from stretto.structured.places import NotExpressible, Schema, replace_parts, resolve
from stretto.structured.workers import check_budget

MAX_DEFINITIONS = 1_000

Scope = tuple[tuple[str, str], ...]  # the place of each dynamic anchor's schema, by its name; sorted


class Scopes:
    """One schema whose references are pointers, dynamic ones too.

    `resources` are the places of its resources (pointers without `#`), `anchors` the dynamic anchors of each,
    by name.
    """

    def __init__(self, root: dict[str, Any], resources: set[str], anchors: dict[str, dict[str, str]]) -> None:
        self._root, self._resources, self._anchors = root, resources, anchors
        self._names = {place: name for found in anchors.values() for name, place in found.items()}
        self._definitions: dict[tuple[str, Scope], str] = {}  # their references
        self._open: list[tuple[str, Scope, str]] = []

    def rewrite(self) -> Schema:
        """The schema, with a definition for each schema and scope."""
        scope = self._entered((), "")
        self._definitions["", scope] = "#"
        made = self._schema(self._root, "", scope)
        definitions: dict[str, Any] = {}
        while self._open:
            place, scope, name = self._open.pop()
            target = resolve(self._root, f"#{quote(place)}")
            if target is None:
                raise NotExpressible("#", f"the reference to {place!r:.100} leads nowhere")
            definitions[name] = self._schema(target, place, scope)
        return {**made, "$defs": definitions}

    def _schema(self, schema: Any, place: str, scope: Scope) -> Any:
        """The schema at a place, as it is meant in a scope."""
        check_budget()
        if not isinstance(schema, dict):
            return schema
        if place in self._resources:
            scope = self._entered(scope, place)
        out = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
        if isinstance(schema.get("$ref"), str):
            out["$ref"] = self._reference(unquote(schema["$ref"])[1:], scope)
        if isinstance(schema.get("$dynamicRef"), str):
            del out["$dynamicRef"]
            target = unquote(schema["$dynamicRef"])[1:]
            reference = {"$ref": self._reference(dict(scope).get(self._names[target], target), scope)}
            out |= {"allOf": [*out.get("allOf", []), reference]} if "$ref" in out else reference
        replace_parts(out, place, lambda inner, at: self._schema(inner, at, scope))
        return out

    def _reference(self, place: str, scope: Scope) -> str:
        """A reference to the definition of a schema in a scope."""
        scope = self._entered(scope, self._resource(place))
        if (found := self._definitions.get((place, scope))) is not None:
            return found
        if len(self._definitions) > MAX_DEFINITIONS:
            raise NotExpressible(f"#{place}", "dynamic references give it too many meanings")
        name = f"stretto:s{len(self._definitions)}"
        self._definitions[place, scope] = f"#/$defs/{name}"
        self._open.append((place, scope, name))
        return f"#/$defs/{name}"

    def _entered(self, scope: Scope, resource: str) -> Scope:
        """The scope within a resource: anchors belong to the outermost resource that has them."""
        return tuple(sorted({**self._anchors.get(resource, {}), **dict(scope)}.items()))

    def _resource(self, place: str) -> str:
        """The innermost resource around a place."""
        while place not in self._resources:
            place = place.rpartition("/")[0]
        return place
