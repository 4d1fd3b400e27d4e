"""Checks of grammars before they are compiled.

The compiler recurses along a grammar and cannot be interrupted, so its input is bounded first: in size,
which bounds how far definitions can refer to each other, and in how deep brackets stand in brackets.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import ceil, floor
from typing import Any

from stretto.errors import InvalidGrammar
from stretto.structured.formats import FORMATS
from stretto.structured.normalised import (
    NEEDED,
    gather_strays,
    move_deep_parts,
    normalise_schema,
    without_descriptions,
    without_neighbours,
)
from stretto.structured.overlap import Overlap
from stretto.structured.patterns import with_ecma_patterns
from stretto.structured.places import LISTS, MAPS, SINGLE, NotExpressible, Schema, is_old, resolve
from stretto.structured.rewrite import SPECIAL, rewrite_schema
from stretto.structured.workers import check_budget

# How many patterns one text has to fit at once: the parser's work doubles with each, and cannot stop.

MAX_TOGETHER = 10  # patterns; the parser takes a second for 12, and minutes for 16
MAX_PATH = 8  # of properties within properties
_LARK = re.compile(r'"(?:\\.|[^"\\\n])*"?|/(?:\\.|[^/\\\n])*/?|&|%json\s*(?=\{)', re.DOTALL)

Path = tuple[str, ...]


def most_together(root: Schema) -> int:
    """The most patterns of a schema that apply to one text, or a few more.

    >>> most_together({"pattern": "a", "anyOf": [{"pattern": "b"}, {"pattern": "c"}]})
    2
    """
    return max(_Together(root).counts(root, ()).values(), default=0)


def most_intersected(text: str) -> int:
    """The intersections (`&`) of a Lark grammar, or the most patterns at once of a schema in it."""
    n_intersections, most = 0, 0
    for found in _LARK.finditer(text):
        n_intersections += found[0] == "&"
        if found[0].startswith("%json"):
            try:
                schema, _ = json.JSONDecoder().raw_decode(text, found.end())
                most = max(most, most_together(schema))
            except ValueError:
                continue  # the parser says what is wrong
            except RecursionError:
                return MAX_TOGETHER + 1  # behind a long chain of references, and not counted
    return max(n_intersections, most)


class _Together:
    """The counts of one schema: how many patterns apply to the value at each path within a value."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[str, Counter[Path]] = {}  # by reference; empty while it is being counted

    def counts(self, schema: Any, path: Path) -> Counter[Path]:
        """The counts of a schema, and of all that it consists of; the largest of each choice."""
        found: Counter[Path] = Counter()
        if not isinstance(schema, dict) or len(path) > MAX_PATH:
            return found
        check_budget()
        if n := isinstance(schema.get("pattern"), str) + (schema.get("format") in FORMATS):
            found[path] = n
        if isinstance(reference := schema.get("$ref"), str):
            found.update(self._referred(reference, path))
        for part in _list(schema.get("allOf")):
            found.update(self.counts(part, path))
        for key in ("anyOf", "oneOf"):
            choices: Counter[Path] = Counter()
            for part in _list(schema.get(key)):
                choices |= self.counts(part, path)
            found.update(choices)
        for key in ("properties", "patternProperties"):
            for name, part in _dict(schema.get(key)).items():
                found.update(self.counts(part, (*path, name)))
        for i, part in enumerate(_list(schema.get("prefixItems"))):
            found.update(self.counts(part, (*path, f"[{i}")))
        for key in ("items", "additionalProperties"):
            found.update(self.counts(schema.get(key), (*path, "[")))
        return found

    def _referred(self, reference: str, path: Path) -> Counter[Path]:
        if reference not in self._known:
            self._known[reference] = Counter()
            self._known[reference] = self.counts(resolve(self._root, reference), ())
        own = self._known[reference].items()
        return Counter({(*path, *inner): n for inner, n in own if len(path) + len(inner) <= MAX_PATH})


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# Bounds of numbers that llguidance does not keep.
#
# Between a whole number that is excluded and a fraction less than one above it, as 0 < x ≤ 0.5, it accepts
# the whole number (below zero the other way round). Such a range is refused.

MAY_BE_WRONG = re.compile(r'"exclusiveM(?:in|ax)imum": ')
MAX_NUMBER = (1 << 63) - 1024  # as a bound
BOUNDS = "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"


def wrong_bound(overlap: Overlap, schema: dict[str, Any]) -> str | None:
    """The bound of a schema's numbers that would be accepted although it is excluded, in words; else None."""
    try:
        members = overlap.members([schema]) or []
    except TypeError:  # a keyword of the wrong kind, which the parser refuses
        return None
    except NotExpressible:
        members = [one for one in (schema, *schema.get("allOf", [])) if isinstance(one, dict)]
    if all("type" in one and "number" not in _types(one) for one in members if one.keys() & set(BOUNDS)):
        return None
    given = {key: [one[key] for one in members if _is_number(one.get(key))] for key in BOUNDS}
    lows = given["minimum"] + given["exclusiveMinimum"]
    highs = given["maximum"] + given["exclusiveMaximum"]
    for least in given["exclusiveMinimum"]:
        if least >= 0 and least == floor(least) and any(floor(one) == least < one for one in highs):
            return f"exclusiveMinimum {least}"
    for most in given["exclusiveMaximum"]:
        if most < 0 and most == ceil(most) and any(ceil(one) == most > one for one in lows):
            return f"exclusiveMaximum {most}"
    return None


def narrow_bounds(schema: Schema) -> Schema:
    """A schema whose numbers are not farther from 0 than the parser can count.

    >>> narrow_bounds({"minimum": -(2**63)})
    {'minimum': -9223372036854774784}
    """
    for _, part in _schemas(schema):
        for key, sign in (("minimum", -1), ("exclusiveMinimum", -1), ("maximum", 1), ("exclusiveMaximum", 1)):
            bound: Any = part.get(key)
            if _is_number(bound) and bound * sign > MAX_NUMBER:
                part[key] = sign * MAX_NUMBER
    return schema


def _types(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return types if isinstance(types, list) else [types]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


MAX_CHARACTERS = 256 << 10  # of a grammar
MAX_DESCRIBED = 512 << 10  # of a JSON schema with its titles, descriptions and examples
MAX_LARK_CHARACTERS = 64 << 10  # of a Lark grammar, whose rules may be combined more freely
MAX_DEPTH = 100  # of brackets in a JSON schema
OPTIONS_KEY = "x-guidance"  # settings of the library, hidden in a schema

_DESCRIBED = re.compile('"(?:title|[dD]escription|[a-z]+Description|examples|\\$comment|default)": ')
_SPECIAL = re.compile(rf'"({"|".join(sorted(SPECIAL))})"|\(\?[!=]')
_TEXTS = re.compile(r'"(?:pattern|format)": ')
_PATTERN = re.compile(r'"pattern(Properties)?": ')
_TEMPERATURE = re.compile(r"^[ \t]*[?!]?[\w-]+(\.\d+)?[ \t]*\[[^\]]*\btemperature\b", re.MULTILINE)


def check_described(text: str) -> None:
    """Raise for a schema that is too long even if much of it is descriptions, or no text."""
    check_size(
        text,
        "the JSON schema",
        "schema",
        MAX_DESCRIBED,
        f" beside what is not about values (and {MAX_DESCRIBED} with it)",
    )


def check_size(text: str, name: str, param: str, most: int = MAX_CHARACTERS, what: str = "") -> None:
    """Raise for a grammar that is too long, or no text; `name` is for the message, `param` the argument's."""
    if not isinstance(text, str):
        raise InvalidGrammar(f"{name} must be a text, not {text!r:.100}", param=param, value=text)
    if not text:
        raise InvalidGrammar(f"{name} is empty", param=param, value=text)
    if len(text) > most:
        may = f"{MAX_CHARACTERS if what else most}{what}"
        raise InvalidGrammar(f"{name} has {len(text)} characters; it may have {may}", param=param)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidGrammar(
                f"{name} has a lone surrogate at character {error.start}", param=param
            ) from None


def check_regex(pattern: str, name: str) -> None:
    """Raise for a pattern that is no text or too long; the compiler checks the rest."""
    check_size(pattern, name, name)


def check_lark(text: str) -> None:
    """Raise for a grammar that is no text or too long, and for parts that would be ignored."""
    check_size(text, "a Lark grammar", "text", MAX_LARK_CHARACTERS)
    if _TEMPERATURE.search(text):
        raise InvalidGrammar(
            "a Lark grammar asks for a temperature of its own, which is not supported; "
            "use the option temperature",
            param="text",
        )
    _check_together(most_intersected(text), "the Lark grammar", "text")


def check_schema(schema: Any, documents: Mapping[str, Any] | None = None) -> str:
    """The text of a schema; raises if it is none, too large or too deep, or refers to what is not given.

    `documents` are schemas that it may refer to, by their URIs.
    """
    if isinstance(schema, str):
        check_described(schema)
        try:
            schema = json.loads(schema)
        except RecursionError:
            raise InvalidGrammar(_too_deep(""), param="schema") from None
        except ValueError as error:
            raise InvalidGrammar(
                f"the JSON schema is no JSON: {error}", param="schema", value=schema
            ) from None
    if not isinstance(schema, (Mapping, bool)):
        raise InvalidGrammar(
            f"a JSON schema must be a dict, True or False, not {schema!r:.100}", param="schema", value=schema
        )
    if schema is False:
        raise InvalidGrammar("the JSON schema is false: nothing fits it", param="schema", value=False)
    for path, value in walk(schema):
        if isinstance(value, Mapping):
            _check_keys(path, value)
    text = _write(schema)
    check_described(text)
    if _DESCRIBED.search(text):
        schema = without_descriptions(json.loads(text))
        text = write_schema(schema)
    check_size(text, "the JSON schema", "schema")
    if documents:
        documents = _checked(documents)
    if '"$ref"' in text and "draft-0" in text and is_old(plain := json.loads(text)):
        schema = without_neighbours(plain)
        text = write_schema(schema)
        documents = {uri: without_neighbours(part) for uri, part in (documents or {}).items()}
    if documents or NEEDED.search(text):
        schema = normalise_schema(json.loads(text), documents)
        text = write_schema(schema)
    if _PATTERN.search(text):
        schema = with_ecma_patterns(json.loads(text))
        text = write_schema(schema)
    for path, value in walk(schema):
        if isinstance(value, Mapping):
            _check_reference(path, value)
    return text


def _checked(documents: Any) -> dict[str, Any]:
    """Documents that a schema may refer to, which are schemas, and not too large together."""
    if not isinstance(documents, Mapping) or not all(isinstance(uri, str) for uri in documents):
        raise InvalidGrammar(
            f"documents must be a dict of schemas by their URIs, not {documents!r:.100}", param="documents"
        )
    for uri, document in documents.items():
        if not isinstance(document, (Mapping, bool)):
            raise InvalidGrammar(
                f"the document {uri!r:.100} must be a dict, True or False", param="documents", value=uri
            )
        for path, value in walk(document):
            if isinstance(value, Mapping):
                _check_keys(path, value)
    return dict(json.loads(write_schema(dict(documents))))


def parser_schema(text: str, *, closed: bool = False, checks: bool = False) -> str:
    """The text of a schema as the parser takes it, from one that `check_schema` gave.

    Raises for what the parser cannot follow. `closed` forbids properties that are not named; `checks`: see
    `rewrite_schema`.
    """
    made = text
    if closed or _SPECIAL.search(text):
        schema = json.loads(text)
        made = write_schema(
            move_deep_parts(rewrite_schema(gather_strays(schema), closed=closed, checks=checks))
        )
        if made == "false":
            raise InvalidGrammar("no value fits the JSON schema", param="schema", value=schema)
    if MAY_BE_WRONG.search(made):
        _check_bounds(json.loads(made))
    if len(_TEXTS.findall(made)) > MAX_TOGETHER:
        try:
            n = most_together(json.loads(made))
        except RecursionError:
            raise InvalidGrammar(
                "the JSON schema has patterns behind too long a chain of references; shorten it",
                param="schema",
            ) from None
        _check_together(n, "the JSON schema", "schema")
    return made


def _check_together(n: int, name: str, param: str) -> None:
    """Raise for more patterns at once than can be checked against each other."""
    if n > MAX_TOGETHER:
        raise InvalidGrammar(
            f"{name} has {n} patterns for one text; at most {MAX_TOGETHER} can apply at once; join them",
            param=param,
            value=n,
        )


def _check_bounds(schema: Any) -> None:
    """Raise for bounds of numbers that the parser does not keep."""
    overlap = Overlap(schema)
    for path, value in _schemas(schema):
        if bound := wrong_bound(overlap, value):
            raise InvalidGrammar(
                f"the JSON schema at {path}: {bound} with another bound less than 1 away cannot be kept "
                "exactly; use an integer as the other bound, or a fraction as this one",
                param="schema",
                value=value,
            )


def with_options(text: str, options: str) -> str:
    """The text of a schema with settings of the library, as JSON.

    They come last: the library takes them out and puts the last keyword in their place, and the order of
    keywords is that of the properties they name.

    >>> with_options('{"type": "object"}', '{"lenient": false}')
    '{"type": "object", "x-guidance": {"lenient": false}}'
    """
    rest = "" if text == "true" else text.strip().removeprefix("{").removesuffix("}").strip()
    return f'{{{rest}{", " if rest else ""}"{OPTIONS_KEY}": {options}}}'


def write_schema(schema: Any) -> str:
    """A schema as JSON, which is not too long."""
    text = _write(schema)
    check_size(text, "the JSON schema", "schema")
    return text


def _write(schema: Any) -> str:
    try:
        return json.dumps(schema, allow_nan=False, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise InvalidGrammar(f"the JSON schema cannot be written as JSON: {error}", param="schema") from None


def _schemas(root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all schemas within it, with their paths; what `const` and the like hold is none."""
    stack = [("#", root)]
    while stack:
        path, schema = stack.pop()
        if not isinstance(schema, dict):
            continue
        yield path, schema
        for key, value in schema.items():
            if key in MAPS and isinstance(value, dict):
                stack += [(f"{path}/{key}/{_escaped(name)}", part) for name, part in value.items()]
            elif key in LISTS and isinstance(value, list):
                stack += [(f"{path}/{key}/{i}", part) for i, part in enumerate(value)]
            elif key in SINGLE:
                stack.append((f"{path}/{key}", value))


def walk(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every value in a schema with its path, `#/properties/name`; without recursion, and never too deep."""
    stack: list[tuple[str, Any, int]] = [("#", schema, 1)]
    n = 0
    while stack:
        path, value, depth = stack.pop()
        n += 1
        if depth > MAX_DEPTH:
            raise InvalidGrammar(_too_deep(path), param="schema")
        if n > MAX_CHARACTERS:
            raise InvalidGrammar(f"the JSON schema has more than {MAX_CHARACTERS} values", param="schema")
        yield path, value
        if isinstance(value, Mapping):
            stack += [(f"{path}/{_escaped(key)}", item, depth + 1) for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            stack += [(f"{path}/{i}", item, depth + 1) for i, item in enumerate(value)]


def find_key(schema: str, key: str) -> str | None:
    """The path of a keyword in a schema, the first if there are several."""
    places = [path for path, value in walk(json.loads(schema)) if isinstance(value, dict) and key in value]
    return f"{min(places, key=len)}/{_escaped(key)}" if places else None


def find_mentioned(schema: str, message: str) -> str | None:
    """The path of the pattern or reference in a schema that a message of the parser quotes."""
    for path, value in sorted(walk(json.loads(schema)), key=lambda found: len(found[0])):
        if not isinstance(value, dict):
            continue
        for key in ("pattern", "$ref"):
            if isinstance(text := value.get(key), str) and text.removeprefix("#") in message:
                return f"{path}/{key}"
        patterns = value.get("patternProperties")
        if isinstance(patterns, dict) and any(pattern[:40] in message for pattern in patterns):
            return f"{path}/patternProperties"
    return None


def _check_keys(path: str, value: Mapping[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise InvalidGrammar(
                f"the JSON schema has {key!r} as a key at {path}; keys are texts", param="schema", value=key
            )
    if path == "#" and OPTIONS_KEY in value:
        raise InvalidGrammar(
            f"{OPTIONS_KEY} in a schema is not supported; use the options of Grammar.json", param="schema"
        )


def _check_reference(path: str, value: Mapping[Any, Any]) -> None:
    reference = value.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise InvalidGrammar(
            f"the JSON schema refers to {reference!r:.100} at {path}/$ref; nothing is fetched, so put it "
            "into $defs and refer to #/$defs/..., or give it as documents={URI: schema}",
            param="schema",
            value=reference,
        )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r:.100} is no JSON value")


def _escaped(key: Any) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _too_deep(path: str) -> str:
    where = f" at {path[:60]}..." if path else ""
    return f"the JSON schema is nested deeper than {MAX_DEPTH} brackets{where}; use $defs and $ref"
