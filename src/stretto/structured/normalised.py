"""JSON schemas without the forms that the parser reads in another way, or not at all.

References become pointers into the schema, also those by `$id`, by anchors, and dynamic ones; counts such as
2.0 become integers.

Nothing is fetched. A schema with an `$id` is a resource of its own, and references in it are relative to it;
the parser knows one resource only, so all references become `#/…` from the root, and the names go. Schemas
under keywords that are rewritten (`if`, `not`, …) are copied to `$defs`, where references find them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from stretto.structured.places import (
    LISTS,
    MAPS,
    SINGLE,
    NotExpressible,
    Schema,
    escaped,
    is_old,
    knows_prefix_items,
    refused,
    resolve,
)

_MOVED = "if|then|else|not|contains|propertyNames|dependentSchemas"  # keywords whose schemas are rewritten
_LEGAL = r"\w\-.~!$&'()*+,;=:@/?%#"  # characters of references, in a class
NEEDED = re.compile(
    r'"\$(id|anchor|dynamicAnchor|dynamicRef)"|"\$ref": "[^#]|"(min|max)\w+": \d+\.0*[,}]'
    rf'|"\$ref": "#[^"]*(/({_MOVED})["/]|[^{_LEGAL}"])|"prefixItems"'
)

_NAMES = ("$id", "$anchor", "$dynamicAnchor")
_VALUES = frozenset(("const", "enum", "default", "examples"))
_COUNTED = ("Length", "Items", "Properties", "Contains")
_COUNTS = frozenset(f"{end}{what}" for end in ("min", "max") for what in _COUNTED)


def normalised(schema: Schema) -> Schema:
    """A schema in which all references that lead into it are pointers from its root."""
    try:
        resources = _Resources(schema)
        made: Schema = resources.with_copies(resources.rewrite(schema, "", ""))
        return made
    except NotExpressible as error:
        raise refused(error.place, error.reason) from None


class _Resources:
    """The places of all names of a schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        dialect = root.get("$schema") if isinstance(root, dict) else None
        self._is_undeclared = not isinstance(dialect, str)
        self._is_old = is_old(root)  # $ref hides what stands beside it
        self._has_prefixes = knows_prefix_items(root)
        self._places: dict[str, str] = {"": ""}  # of resources and anchors, by URI
        self._dynamic: dict[str, list[str]] = {}  # the URIs of resources, by the name of a dynamic anchor
        self._copies: dict[str, str] = {}  # the names in $defs of schemas that are copied there, by pointer
        self._twice: set[str] = set()  # names of two schemas, which is wrong where a reference has one
        self._note(root, "", "")

    def _note(self, schema: Any, base: str, place: str) -> None:
        """Note the names of a schema and of those within it."""
        if not isinstance(schema, dict):
            return
        base = self._base(schema, base)
        if self._own_base(schema) is not None:
            self._add(base, place)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(key), str):
                self._add(f"{base}#{name}", place)
                if key == "$dynamicAnchor":
                    self._dynamic.setdefault(name, []).append(base)
        if self._is_old and str(schema.get("$id", "")).startswith("#"):
            self._add(base + schema["$id"], place)
        for _, _, inner, at in _within(schema, place):
            self._note(inner, base, at)

    def _add(self, uri: str, place: str) -> None:
        if self._places.setdefault(uri, place) != place and uri:
            self._twice.add(uri)

    def _place(self, uri: str, place: str) -> str | None:
        """The place of a name that a reference has."""
        if uri in self._twice:
            raise NotExpressible(f"#{place}/$ref", f"the name {uri!r:.100} is given to two schemas")
        return self._places.get(uri)

    def _own_base(self, schema: dict[str, Any]) -> str | None:
        """The `$id` of a schema, if it makes it a resource."""
        given = schema.get("$id")
        is_hidden = self._is_old and "$ref" in schema
        return given if isinstance(given, str) and not given.startswith("#") and not is_hidden else None

    def _base(self, schema: dict[str, Any], base: str) -> str:
        own = self._own_base(schema)
        return base if own is None else _joined(base, own).removesuffix("#")

    def rewrite(self, schema: Any, base: str, place: str) -> Any:
        """The schema at a place, with pointers for references."""
        if not isinstance(schema, dict):
            return schema
        base = self._base(schema, base)
        out = {key: value for key, value in schema.items() if key not in _NAMES}
        if not self._has_prefixes:
            out.pop("prefixItems", None)  # unknown there: `items` is for all of them
        if self._is_undeclared and place and "$ref" in schema and self._own_base(schema) is not None:
            raise NotExpressible(f"#{place}/$ref", "beside an $id this depends on the draft; give $schema")
        for key, value in out.items():
            if key in _COUNTS and isinstance(value, float) and value.is_integer():
                out[key] = int(value)
            elif key not in _VALUES and base and self._places.get(base) and _is_unknown(key, value):
                raise NotExpressible(
                    f"#{place}/{escaped(key)}", "a reference under a keyword that is unknown"
                )
        if isinstance(schema.get("$ref"), str):
            out["$ref"] = _legal(self._pointer(schema["$ref"], base, place))
        if isinstance(schema.get("$dynamicRef"), str):
            target = self._dynamic_pointer(schema["$dynamicRef"], base, place)
            del out["$dynamicRef"]
            if "$ref" in out:
                out["allOf"] = [*out.get("allOf", []), {"$ref": target}]
            else:
                out["$ref"] = target
        for key, name, inner, at in list(_within(out, place)):
            made = self.rewrite(inner, base, at)
            if name is None:
                out[key] = made
            elif isinstance(out[key], list):
                out[key] = [*out[key][:name], made, *out[key][name + 1 :]]
            else:
                out[key] = {**out[key], name: made}
        return out

    def _pointer(self, reference: str, base: str, at: str) -> str:
        """A reference as a pointer from the root; unchanged if it leads nowhere here."""
        uri, _, fragment = _joined(base, reference).partition("#")
        if not fragment or fragment.startswith("/"):
            place = self._place(uri, at)
            return reference if place is None else self._found(f"#{_quoted(place)}{fragment}")
        place = self._place(f"{uri}#{fragment}", at)
        return reference if place is None else self._found(f"#{_quoted(place)}")

    def _found(self, pointer: str) -> str:
        """A pointer, or that of a copy where the schema itself is rewritten."""
        if not re.search(rf"/({_MOVED})(/|$)", pointer):
            return pointer
        name = self._copies.setdefault(pointer, f"stretto:{len(self._copies)}")
        return f"#/$defs/{name}"

    def with_copies(self, made: Any) -> Any:
        """A schema that was rewritten, with the copies that its references lead to."""
        copies = {}
        for pointer, name in self._copies.items():
            found = resolve(made, pointer)
            if found is None:
                raise NotExpressible("#", f"the reference to {pointer!r:.100} leads nowhere")
            copies[name] = found
        if not copies:
            return made
        own = made.get("$defs", {})
        if not isinstance(own, dict):
            raise NotExpressible("#/$defs", "it has to be an object")
        return {**made, "$defs": {**own, **copies}}

    def _dynamic_pointer(self, reference: str, base: str, place: str) -> str:
        """The pointer of a dynamic reference that can lead to one place only."""
        uri, _, name = _joined(base, reference).partition("#")
        others = [one for one in self._dynamic.get(name, ()) if one != uri]
        if uri in self._dynamic.get(name, ()) and others:
            raise NotExpressible(
                f"#{place}/$dynamicRef", f"several schemas have the $dynamicAnchor {name!r:.100}"
            )
        pointer = self._pointer(reference, base, place)
        if pointer != "#" and not pointer.startswith("#/"):
            raise NotExpressible(f"#{place}/$dynamicRef", f"{reference!r:.100} leads to no schema here")
        return pointer


def _within(schema: dict[str, Any], place: str) -> Iterator[tuple[str, Any, Any, str]]:
    """The schemas right within one: the keyword, the name or index under it, the schema, and its place."""
    for key, value in schema.items():
        here = f"{place}/{escaped(key)}"
        if key in SINGLE and isinstance(value, dict):
            yield key, None, value, here
        elif (key in LISTS or key == "items") and isinstance(value, list):
            yield from ((key, i, part, f"{here}/{i}") for i, part in enumerate(value))
        elif key in MAPS and isinstance(value, dict):
            yield from ((key, name, part, f"{here}/{escaped(name)}") for name, part in value.items())


def _is_unknown(key: str, value: Any) -> bool:
    """Whether the value of a keyword that holds no schemas has a reference in it."""
    return key not in {*SINGLE, *LISTS, *MAPS, "items"} and _refers(value)


def _refers(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


def _legal(reference: str) -> str:
    """A reference in which characters that URIs do not have, such as those of `Partial<T>`, are escaped."""
    return re.sub(f"[^{_LEGAL}]+", lambda found: quote(found[0]), reference)


def _joined(base: str, reference: str) -> str:
    """A reference in full."""
    if reference.startswith("#"):
        return base + reference
    try:
        return reference if urlsplit(reference).scheme or not base else urljoin(base, reference)
    except ValueError as error:
        raise NotExpressible("#", f"{reference!r:.100} is no address: {error}") from None


def _quoted(place: str) -> str:
    """A pointer as the fragment of a URI."""
    return place.replace("%", "%25")
