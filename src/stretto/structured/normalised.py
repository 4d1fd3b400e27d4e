"""JSON schemas without the forms that the parser reads in another way, or not at all.

References become pointers into the schema, also those by `$id`, by anchors, and dynamic ones; counts such as
2.0 become integers.

Nothing is fetched: references lead into the schema, or to documents that are given beside it, which become
definitions of it. A schema with an `$id` is a resource of its own, and references in it are relative to it;
the parser knows one resource only, so all references become `#/…` from the root, and the names go. Schemas
under keywords that are rewritten (`if`, `not`, …) are copied to `$defs`, where references find them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote, unquote, urljoin, urlsplit

from stretto.structured.places import (
    ANNOTATIONS,
    LISTS,
    MAPS,
    SINGLE,
    NotExpressible,
    Schema,
    escape_key,
    is_old,
    knows_prefix_items,
    replace_parts,
    resolve,
    schema_error,
    walk_parts,
    walk_references,
)
from stretto.structured.workers import check_budget

# What is not about values.

_DESCRIPTIONS_WORDS = "title description markdownDescription $comment examples default"
_DESCRIPTIONS = frozenset(_DESCRIPTIONS_WORDS.split())


def without_descriptions(schema: Any) -> Any:
    """A schema without titles, descriptions, examples and the like; itself if a reference may lead to them.

    >>> without_descriptions({"title": "a", "properties": {"title": {"default": 3}}})
    {'properties': {'title': {}}}
    """
    if any(not _DESCRIPTIONS.isdisjoint(one.split("/")) for one in walk_references(schema)):
        return schema

    def plain(part: Any, place: str) -> Any:
        if not isinstance(part, dict):
            return part
        out = {key: value for key, value in part.items() if key not in _DESCRIPTIONS}
        replace_parts(out, place, plain)
        return out

    return plain(schema, "")


# Draft 7 and older: what stands beside a reference says nothing.

_KEPT_BESIDE = ANNOTATIONS | {"$ref", "$id", "id"}


def without_neighbours(schema: Any) -> Any:
    """A schema in which references stand alone, as the drafts up to 7 read them.

    What another reference leads to stays.

    >>> without_neighbours({"$ref": "#/definitions/a", "maximum": 3, "definitions": {"a": {}}})
    {'$ref': '#/definitions/a', 'definitions': {'a': {}}}
    """
    targets = {reference for reference in walk_references(schema) if reference.count("/") > 1}

    def alone(part: Any, place: str) -> Any:
        if not isinstance(part, dict):
            return part
        out = dict(part)
        if isinstance(part.get("$ref"), str):
            ignored = part.keys() - _KEPT_BESIDE
            led_to = {key for key in ignored if any(_is_in(one, f"#{place}/{key}") for one in targets)}
            out = {key: value for key, value in part.items() if key not in ignored - led_to}
        replace_parts(out, place, alone)
        return out

    return alone(schema, "")


def _is_in(pointer: str, place: str) -> bool:
    return pointer == place or pointer.startswith(f"{place}/")


# Dynamic references in JSON schemas: a copy of a schema for each scope in which it is used.
#
# A `$dynamicRef` leads to the outermost resource, of those that are entered on the way to it, which has
# the `$dynamicAnchor`. So what a schema means depends on the way; there are as many meanings as there
# are scopes, a scope being which resource each anchor belongs to. Each schema that is referred to
# becomes a definition for each scope it is used in, and references within it lead to definitions for
# its scope.

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


def normalise_schema(schema: Schema, documents: Mapping[str, Any] | None = None) -> Schema:
    """A schema in which all references that lead into it, or to `documents`, are pointers from its root.

    >>> normalise_schema({"$ref": "https://a.org/b"}, {"https://a.org/b": {"type": "null"}})
    {'$ref': '#/$defs/stretto:f0', '$defs': {'stretto:f0': {'type': 'null'}}}
    """
    try:
        resources = _Resources(schema, documents or {})
        made: Schema = resources.with_copies(resources.rewritten())
        return made
    except NotExpressible as error:
        raise schema_error(error.place, error.reason) from None


class _Resources:
    """The places of all names of a schema."""

    def __init__(self, root: Schema, documents: Mapping[str, Any]) -> None:
        self._root = root
        dialect = root.get("$schema") if isinstance(root, dict) else None
        self._is_undeclared = not isinstance(dialect, str)
        self._is_old = is_old(root)  # $ref hides what stands beside it
        self._has_prefixes = knows_prefix_items(root)
        self._places: dict[str, str] = {"": ""}  # of resources and anchors, by URI
        self._resources = {""}  # their places
        self._bases: dict[str, str] = {}  # of documents that are given, by place
        self._referred: set[str] = set()  # the URIs of all references, without fragments
        self._dynamic: dict[str, dict[str, str]] = {}  # dynamic anchors by resource and name: their places
        self._is_ambiguous = False
        self._copies: dict[str, str] = {}  # the names in $defs of schemas that are copied there, by pointer
        self._twice: set[str] = set()  # names of two schemas, which is wrong where a reference has one
        self._note(root, "", "", "")
        self._add_documents(documents)
        n_anchors = Counter(name for names in self._dynamic.values() for name in names)
        self._is_ambiguous = any(n > 1 for n in n_anchors.values()) and _has_key(self._root, "$dynamicRef")

    def _add_documents(self, documents: Mapping[str, Any]) -> None:
        """Make definitions of the documents that are referred to, also by each other."""
        given = {uri.removesuffix("#"): (uri, document) for uri, document in documents.items()}
        for uri, document in documents.items():
            if isinstance(document, dict) and isinstance(own := document.get("$id"), str):
                given.setdefault(_joined(uri, own).removesuffix("#"), (uri, document))
        own = self._root.get("$defs", {}) if isinstance(self._root, dict) else None
        while isinstance(own, dict) and (wanted := (self._referred & given.keys()) - self._places.keys()):
            uri, document = given[min(wanted)]
            if (is_old(document), knows_prefix_items(document)) != (self._is_old, self._has_prefixes):
                raise NotExpressible("#", f"the document {uri!r:.100} is of another draft than the schema")
            name = f"stretto:f{len(self._bases)}"
            own = {**own, name: document}
            place = f"/$defs/{name}"
            self._bases[place] = uri.removesuffix("#")
            self._resources.add(place)
            self._add(self._bases[place], place)
            self._note(document, self._bases[place], place, place)
        if self._bases:
            self._root = {**cast(dict[str, Any], self._root), "$defs": own}

    def rewritten(self) -> Any:
        """The schema with pointers for references."""
        made = self.rewrite(self._root, "", "")
        if not self._is_ambiguous:
            return made
        if self._copies:
            raise NotExpressible("#", "dynamic references beside those into conditions cannot be followed")
        return Scopes(made, self._resources, self._dynamic).rewrite()

    def _note(self, schema: Any, base: str, place: str, resource: str) -> None:
        """Note the names of a schema and of those within it."""
        if not isinstance(schema, dict):
            return
        base = self._base(schema, base)
        if self._own_base(schema) is not None:
            self._add(base, place)
            resource = place
            self._resources.add(place)
        for key in ("$ref", "$dynamicRef"):
            if isinstance(reference := schema.get(key), str):
                self._referred.add(_joined(base, reference).partition("#")[0])
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(key), str):
                self._add(f"{base}#{name}", place)
                if key == "$dynamicAnchor":
                    self._dynamic.setdefault(resource, {})[name] = place
        if self._is_old and str(schema.get("$id", "")).startswith("#"):
            self._add(base + schema["$id"], place)
        for _, _, inner, at in walk_parts(schema, place):
            self._note(inner, base, at, resource)

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
        base = self._base(schema, self._bases.get(place, base))
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
                    f"#{place}/{escape_key(key)}", "a reference under a keyword that is unknown"
                )
        if isinstance(schema.get("$ref"), str):
            out["$ref"] = _legal(self._pointer(schema["$ref"], base, place))
        if isinstance(schema.get("$dynamicRef"), str):
            target = self._dynamic_pointer(schema["$dynamicRef"], base, place)
            del out["$dynamicRef"]
            if self._is_ambiguous and self._is_dynamic(schema["$dynamicRef"], target):
                out["$dynamicRef"] = target
            elif "$ref" in out:
                out["allOf"] = [*out.get("allOf", []), {"$ref": target}]
            else:
                out["$ref"] = target
        replace_parts(out, place, lambda inner, at: self.rewrite(inner, base, at))
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
        """The pointer of a dynamic reference, as far as it is known without the way that leads to it."""
        pointer = self._pointer(reference, base, place)
        if pointer != "#" and not pointer.startswith("#/"):
            raise NotExpressible(f"#{place}/$dynamicRef", f"{reference!r:.100} leads to no schema here")
        return pointer

    def _is_dynamic(self, reference: str, pointer: str) -> bool:
        """Whether a reference has the name of a dynamic anchor; others lead to one place."""
        name, place = reference.rpartition("#")[2], unquote(pointer)[1:]
        return any(found.get(name) == place for found in self._dynamic.values())


def _is_unknown(key: str, value: Any) -> bool:
    """Whether the value of a keyword that holds no schemas has a reference in it."""
    return key not in {*SINGLE, *LISTS, *MAPS, "items"} and _refers(value)


def _has_key(value: Any, key: str) -> bool:
    """Whether an object anywhere in a value has a key."""
    if isinstance(value, dict):
        return key in value or any(_has_key(inner, key) for inner in value.values())
    return isinstance(value, list) and any(_has_key(inner, key) for inner in value)


def _refers(value: Any) -> bool:
    return _has_key(value, "$ref")


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


# References to schemas in places where a schema has none, such as under a keyword that is unknown.


def gather_strays(root: Schema) -> Schema:
    """A schema whose references lead to places of schemas: what stands elsewhere is copied to `$defs`.

    >>> made = gather_strays({"$ref": "#/kinds/a", "kinds": {"a": {"type": "null"}}})
    >>> made["$ref"], made["$defs"]
    ('#/$defs/kinds~1a', {'kinds/a': {'type': 'null'}})
    """
    strays = _Strays(root)
    made = strays.rewrite(root)
    if not strays.names or not isinstance(made, dict):
        return root
    copies: dict[str, Any] = {}
    while waiting := strays.names.keys() - copies.keys():
        copies |= {pointer: strays.rewrite(resolve(root, pointer)) for pointer in sorted(waiting)}
    own = made.get("$defs", {})
    return {**made, "$defs": {**own, **{strays.names[pointer]: part for pointer, part in copies.items()}}}


class _Strays:
    """The places that references lead to, and the names that they get in `$defs`."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        own = root.get("$defs", {}) if isinstance(root, dict) else {}
        self._taken = set(own) if isinstance(own, dict) else None
        self.names: dict[str, str] = {}  # by pointer

    def rewrite(self, schema: Any) -> Any:
        """A schema with other references."""
        if not isinstance(schema, dict):
            return schema
        out = dict(schema)
        if isinstance(reference := schema.get("$ref"), str) and self._is_stray(reference):
            out["$ref"] = f"#/$defs/{escape_key(self._name(reference))}"
        for key, value in schema.items():
            if key in MAPS and isinstance(value, dict):
                out[key] = {name: self.rewrite(part) for name, part in value.items()}
            elif key in LISTS and isinstance(value, list):
                out[key] = [self.rewrite(part) for part in value]
            elif key in SINGLE:
                out[key] = self.rewrite(value)
        return out

    def _name(self, pointer: str) -> str:
        if pointer not in self.names:
            name = pointer.removeprefix("#/").replace("~1", "/").replace("~0", "~").replace("%", "_")
            while name in (self._taken or ()):
                name += "'"
            self._taken = {*(self._taken or ()), name}
            self.names[pointer] = name
        return self.names[pointer]

    def _is_stray(self, pointer: str) -> bool:
        """Whether a pointer leads to a schema that stands where there are none."""
        if not pointer.startswith("#/") or self._taken is None or resolve(self._root, pointer) is None:
            return False
        value: Any = self._root
        parts = pointer.split("/")[1:]
        while parts:
            key = parts.pop(0)
            inner = value.get(key) if isinstance(value, dict) else None
            if key in MAPS and isinstance(inner, dict) and parts:
                value = resolve(inner, f"#/{parts.pop(0)}")
            elif key in LISTS and isinstance(inner, list) and parts and parts[0].isdecimal():
                value = inner[int(parts.pop(0))]
            elif key in SINGLE and isinstance(inner, (dict, bool)):
                value = inner
            else:
                return True
        return False


# Deep JSON schemas in pieces: the parser reads JSON that is nested 128 brackets deep, and no deeper.

MAX_DEPTH = 100  # of brackets, before a schema is moved


def move_deep_parts(root: Schema) -> Schema:
    """A schema whose deep parts stand in `$defs`; itself if there are none.

    >>> move_deep_parts({"items": {"items": True}})
    {'items': {'items': True}}
    """
    own = root.get("$defs", {}) if isinstance(root, dict) else None
    if not isinstance(root, dict) or not isinstance(own, dict) or _depth(root) <= MAX_DEPTH:
        return root
    pieces = _Pieces()
    rest = {key: value for key, value in root.items() if key != "$defs"}
    made = pieces.schema(rest, 1)
    moved = {name: pieces.part(part, 2) for name, part in own.items()}
    while pieces.waiting:
        name, part = pieces.waiting.pop()
        moved[name] = pieces.schema(part, 2)
    return {**made, "$defs": moved} if moved else made


class _Pieces:
    """The schemas that are moved, by their names in `$defs`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, dict[str, Any]]] = []
        self._n_moved = 0

    def part(self, schema: Any, depth: int) -> Any:
        """A schema at a depth, or a reference to it."""
        if not isinstance(schema, dict):
            return schema
        if depth < MAX_DEPTH:
            return self.schema(schema, depth)
        self._n_moved += 1
        self.waiting.append((f"stretto:d{self._n_moved}", schema))
        return {"$ref": f"#/$defs/stretto:d{self._n_moved}"}

    def schema(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """A schema at a depth, with references to what is deep in it."""
        return {key: self._within(key, value, depth) for key, value in schema.items()}

    def _within(self, key: str, value: Any, depth: int) -> Any:
        if key in LISTS and isinstance(value, list):
            return [self.part(part, depth + 2) for part in value]
        if key in SINGLE:
            return self.part(value, depth + 1)
        if key in MAPS and isinstance(value, dict):
            return {name: self.part(part, depth + 2) for name, part in value.items()}
        return value


def _depth(value: Any) -> int:
    """How deep brackets stand in brackets; without recursion."""
    deepest, stack = 0, [(value, 0)]
    while stack:
        one, depth = stack.pop()
        deepest = max(deepest, depth)
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        stack += [(part, depth + 1) for part in inner]
    return deepest
