"""Grammars for calls: in the format of a model, or as plain JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stretto.errors import Unsupported
from stretto.structured import Grammar
from stretto.structured.checks import check_size, parser_schema, with_options
from stretto.structured.grammar import TURN, WHITESPACE, ascii_classes
from stretto.structured.quoting import with_quotable_patterns, with_surely_plain_keys
from stretto.tools.check import Tool, Tools, check_tools
from stretto.tools.format import (
    ID,
    LAST_MARK,
    MARKS,
    TYPE,
    CallFormat,
    Elements,
    Encoding,
    Literals,
    Tagged,
    is_mark,
)
from stretto.tools.tag_reading import ALL, MAX_DEPTH, find_types, parse_value, resolve_reference, type_name

# Pieces of grammars in llguidance's variant of Lark.

ANY = "(?s:.*)"


def items(text: str) -> str:
    """A text: strings, special tokens by their ids, and ids of calls."""
    special = rf"[{chr(MARKS)}-{chr(LAST_MARK)}]"
    found = []
    for piece in re.split(rf"({special}|{ID})", text):
        if re.fullmatch(special, piece):
            found.append(f"<[{ord(piece) - MARKS}]>")
        elif piece == ID:
            found.append("ID")
        elif piece:
            found.append(json.dumps(piece, ensure_ascii=False))
    return " ".join(found) or '""'


def escape_pattern(text: str) -> str:
    """A regular expression for a text."""
    return re.sub(r"[^\w ]", lambda match: f"\\x{{{ord(match[0]):X}}}", text)


def json_value(schema: str) -> str:
    """A value by a JSON schema."""
    text = schema
    if schema != "true":
        text = with_quotable_patterns(with_surely_plain_keys(parser_schema(schema)))
    return f"%json {with_options(text, json.dumps(WHITESPACE['spaced']))}"


def text_until(
    patterns: Sequence[str], excluded: Sequence[str], others: Sequence[str], end: str
) -> tuple[str, str]:
    """A terminal for text that fits all of some patterns and none of those excluded, or one of `others`.

    After it comes `end`. All is one terminal, since a text is split into terminals as long as possible.

    Also the items behind the terminal, from the first special token of `end` on: it cannot be in a terminal.
    """
    at = next((i for i, c in enumerate(end) if is_mark(c)), len(end))
    plain, rest = end[:at], end[at:]
    if plain.strip() and not rest:
        excluded = [*excluded, ANY + escape_pattern(plain.strip()) + ANY]
    parts = [f"/{pattern}/" for pattern in patterns or [ANY]] + [f"~/{pattern}/" for pattern in excluded]
    text = " | ".join(["(" + " & ".join(parts) + ")", *(f"/{other}/" for other in others)])
    terminal = f"({text})" + (f" {json.dumps(plain, ensure_ascii=False)}" if plain else "")
    return terminal, items(rest) if rest else ""


def members(parts: Sequence[tuple[str, bool]], comma: str) -> tuple[str, list[str]]:
    """Parts of which some may be left out, with commas between those that are there.

    Each part is a rule's name and whether it is required. Returns the rule to start with, and the rules.
    """
    if not parts:
        return '""', []
    if not comma:
        return " ".join(name if required else f"{name}?" for name, required in parts), []
    lines: list[str] = []
    behind = fresh = ""  # the rules for the rest, with and without something before it
    for name, required in reversed(parts):
        first = f"{name} {behind}".strip()
        after = f"{comma} {first}"
        if not required:
            skipped = f"{comma} {name} {behind}".strip()
            after = f"{skipped} | {behind}" if behind else f"({skipped})?"
            first = f"{first} | {fresh}" if fresh else f"({first})?"
        lines += [f"{name}_first: {first}", f"{name}_behind: {after}"]
        fresh, behind = f"{name}_first", f"{name}_behind"
    return fresh, lines


def dump_schema(value: Any) -> str:
    """A schema as text."""
    return json.dumps(value, ensure_ascii=False)


# Rules for the arguments of a call, by the JSON schema of a function's parameters, in each encoding.

_NOTES = frozenset(("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"))
_NOTES |= {"$comment", "$schema", "$id", "$defs", "definitions"}
_PLAIN = frozenset(("type", "properties", "required", "additionalProperties"))
_STRING = frozenset(("type", "enum", "const", "minLength", "maxLength", "pattern", "format"))
_KEY = re.compile(r"[\w.$@-]{1,128}")
_FORMATS = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+",
}
_FORMATS["date-time"] = f"{_FORMATS['date']}T{_FORMATS['time']}"
# Text that would be read as a value of another type, where a parameter may have both.
_WORDS = {
    "null": "null|None",
    "boolean": "true|false|True|False",
    "integer": r"-?[0-9][-+.eE0-9]*",
    "number": r"-?[0-9][-+.eE0-9]*",
    "object": r"\{(?s:.*)",
    "array": r"\[(?s:.*)",
}

_INTEGER = "-?(0|[1-9][0-9]*)"
_SCALARS = {
    "null": "null",
    "boolean": "true|false",
    "integer": _INTEGER,
    "number": rf"{_INTEGER}(\.[0-9]+)?([eE][+-]?[0-9]{{1,2}})?",
}


class Rules:
    """The rules for one tool: `start` is the expression for its arguments, `lines` the rules it needs."""

    def __init__(self, encoding: Encoding, tool: Tool, prefix: str) -> None:
        self.lines: list[str] = []
        self._tool = tool
        self._prefix = prefix
        self._root: Mapping[str, Any] = json.loads(tool.schema)
        self._references: dict[str, str] = {}
        self._count = 0
        if encoding is None:
            self.start = json_value(tool.schema)
        elif isinstance(encoding, Tagged):
            self.start = self._tags(encoding)
        elif isinstance(encoding, Elements):
            self.start = self._elements(encoding, self._root, "parameters")
        else:
            self.start = self._literals(encoding, self._root, "arguments")

    def _tags(self, tags: Tagged) -> str:
        parts = []
        for key, schema, required in self._properties(self._root, "parameters"):
            parts.append((self._rule(" | ".join(self._tag(tags, key, schema))), required))
        start, lines = members(parts, "")
        self.lines += lines
        return start

    def _tag(self, tags: Tagged, key: str, schema: Any) -> Iterator[str]:
        """The ways to write one argument."""
        found = self._alternatives(schema, key)
        strings = [one for one in found if find_types(one, self._root) == {"string"}]
        others = [one for one in found if one not in strings]
        words: list[str] = []
        if strings and not tags.value_json:
            words = [word for one in others for word in self._words(one, key)]
            others = [one for one in others if find_types(one, self._root) <= {"array", "object"}]
        types = frozenset() if tags.value_json else find_types(schema, self._root) - {"string"}
        for one in strings:
            value = self._string(one, tags.end, types, key, words)
            yield f"{items(tags.key + key + tags.value)} {value}"
        for one in others:
            for opening, typed in self._typed(tags, one):
                yield f"{items(tags.key + key + opening)} {self._json(typed, key)} {items(tags.end)}"

    def _typed(self, tags: Tagged, schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """A schema of no strings, for each type if the tags name it, and the text before a value."""
        if TYPE not in tags.value_json:
            yield tags.value_json or tags.value, schema
            return
        types = find_types(schema, self._root)
        for kind in sorted(types - {"integer"} if "number" in types else types):
            yield tags.value_of_type(kind), {**schema, "type": kind}

    def _words(self, schema: Mapping[str, Any], where: str) -> Iterator[str]:
        """Patterns for values that are no strings, and may stand where a string may."""
        types = find_types(schema, self._root)
        if types <= {"array", "object"}:
            return
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            yield from (escape_pattern(dump_schema(value)) for value in values)
            return
        self._check(schema, {"type"}, where)
        if types & {"array", "object"}:
            raise self._refused(where, "values of several types")
        yield from (_SCALARS[kind] for kind in sorted(types))

    def _elements(self, elements: Elements, schema: Mapping[str, Any], where: str) -> str:
        """The members of an object as elements."""
        if where.count(".") > MAX_DEPTH:
            raise self._refused(where, "a schema that refers to itself")
        parts = []
        for key, inner, required in self._properties(schema, where):
            ways = " | ".join(self._element(elements, key, inner, f"{where}.{key}"))
            parts.append((self._rule(ways), required))
        start, lines = members(parts, "")
        self.lines += lines
        return start

    def _element(self, elements: Elements, name: str, schema: Any, where: str) -> Iterator[str]:
        """The ways to write one value with its tags; where a string may stand, nothing nested is written."""
        opening, end = f"{elements.mark}<{name}>", f"{elements.mark}</{name}>"
        found, types = self._alternatives(schema, where), find_types(schema, self._root)
        if types == ALL:
            raise self._refused(where, "a value of any type")
        kinds = [find_types(one, self._root) for one in found]
        strings = [one for one, kind in zip(found, kinds, strict=True) if kind == {"string"}]
        words = [word for one in found if strings and one not in strings for word in self._words(one, where)]
        for one in strings:
            yield f"{items(opening)} {self._string(one, end, types - {'string'}, where, words)}"
        if not strings and sum(bool(kind & {"object", "array"}) for kind in kinds) > 1:
            raise self._refused(where, "several kinds of objects or arrays")
        for one in () if strings else found:
            yield f"{items(opening)} {self._nested(elements, one, where)} {items(end)}"

    def _nested(self, elements: Elements, schema: Mapping[str, Any], where: str) -> str:
        """A value that is no string, within its element."""
        types = find_types(schema, self._root)
        if not types & {"object", "array"}:
            return self._json(schema, where)
        if types == {"object"}:
            return self._rule(self._elements(elements, schema, where))
        if types != {"array"}:
            raise self._refused(where, "values of several types")
        self._check(schema, {"type", "items", "minItems", "maxItems"}, where)
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems", "")
        ways = self._element(elements, elements.item, schema.get("items", {}), f"{where}.[]")
        return f"({self._rule(' | '.join(ways))}){{{least},{most}}}"

    def _literals(self, encoding: Literals, schema: Mapping[str, Any], where: str) -> str:
        """The members of an object as `name=value`."""
        parts = []
        for key, inner, required in self._properties(schema, where):
            name = self._name()
            self.lines.append(f"{name}: {items(key + encoding.assign)} {self._literal(encoding, inner, key)}")
            parts.append((name, required))
        start, lines = members(parts, items(encoding.comma))
        self.lines += lines
        return start

    def _literal(self, encoding: Literals, schema: Any, where: str) -> str:
        """One value as a literal."""
        if not encoding.quote:
            return self._json(schema, where)
        if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
            return self._reference(encoding, schema["$ref"], where)
        choices = [self._one(encoding, one, where) for one in self._alternatives(schema, where)]
        return choices[0] if len(choices) == 1 else self._rule(" | ".join(choices))

    def _one(self, encoding: Literals, schema: Mapping[str, Any], where: str) -> str:
        types = find_types(schema, self._root)
        if types == {"string"}:
            return f"{items(encoding.quote)} {self._string(schema, encoding.quote, frozenset(), where)}"
        if types <= {"integer", "number", "boolean", "null"}:
            return self._json(schema, where)
        if types == {"object"}:
            return f'"{{" {self._rule(self._literals(encoding, schema, where))} "}}"'
        if types != {"array"}:
            raise self._refused(where, "a value of any type")
        self._check(schema, {"type", "items", "minItems", "maxItems"}, where)
        inner = self._literal(encoding, schema.get("items", {}), f"{where}[]")
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        rest = f"{max(0, least - 1)},{'' if most is None else int(most) - 1}"
        value = f'{inner} ("," {inner}){{{rest}}}'
        return f'"[" {value if least else f"({value})?"} "]"'

    def _reference(self, encoding: Literals, reference: str, where: str) -> str:
        """A rule for a definition, which may refer to itself."""
        if reference not in self._references:
            name = self._references[reference] = self._name()
            value = self._literal(encoding, resolve_reference(reference, self._root), where)
            self.lines.append(f"{name}: {value}")
        return self._references[reference]

    def _properties(self, schema: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any, bool]]:
        """The properties of an object: name, schema, and whether it is required."""
        if isinstance(schema.get("$ref"), str):
            schema = resolve_reference(schema["$ref"], self._root)
        self._check(schema, _PLAIN, where)
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        for key in {*properties, *required}:
            if not _KEY.fullmatch(key):
                raise self._refused(where, f"the name {key!r:.50}")
            if key not in properties:
                raise self._refused(where, f"the required name {key!r:.50} without a schema")
        for key, inner in properties.items():
            yield key, inner, key in required

    def _alternatives(self, schema: Any, where: str) -> list[Mapping[str, Any]]:
        """A schema as several, each for strings alone or for no strings."""
        if schema is True or schema == {}:
            schema = {"type": sorted(ALL - {"integer"})}
        if not isinstance(schema, Mapping):
            raise self._refused(where, "no schema")
        if isinstance(schema.get("$ref"), str):
            return self._alternatives(resolve_reference(schema["$ref"], self._root), where)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                self._check(schema, {key}, where)
                return [one for part in schema[key] for one in self._alternatives(part, where)]
        types = find_types(schema, self._root)
        if types == {"string"} or "string" not in types:
            return [schema]
        if "enum" in schema:
            kinds = {type_name(value) == "string" for value in schema["enum"]}
            split = [[v for v in schema["enum"] if (type_name(v) == "string") == kind] for kind in kinds]
            return [{"enum": values} for values in split]
        if not set(schema) - _NOTES:
            return self._alternatives({}, where)
        if isinstance(schema.get("type"), (list, tuple)):
            rest = [kind for kind in schema["type"] if kind != "string"]
            texts = {key: value for key, value in schema.items() if key in _STRING}
            others = {key: value for key, value in schema.items() if key not in _STRING}
            return [{**texts, "type": "string"}, *({**others, "type": kind} for kind in rest)]
        raise self._refused(where, "a schema without a type")

    def _string(
        self,
        schema: Mapping[str, Any],
        end: str,
        others: frozenset[str],
        where: str,
        words: Sequence[str] = (),
    ) -> str:
        """A string as it is, or one of some words, up to `end`; it must not read as one of the `others`."""
        self._check(schema, _STRING, where)
        excluded = [rf"\s*({_WORDS[kind]})\s*" for kind in sorted(others)]
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        patterns = []
        if values is not None:
            values = [v for v in values if parse_value(v, others) == v]
            patterns.append("|".join(escape_pattern(value) for value in values))
        if "minLength" in schema or "maxLength" in schema:
            patterns.append(f"(?s:.{{{int(schema.get('minLength', 0))},{schema.get('maxLength', '')}}})")
        if "pattern" in schema:
            patterns.append(self._pattern(schema["pattern"], where))
        if "format" in schema:
            if schema["format"] not in _FORMATS:
                raise self._refused(where, f"the format {schema['format']!r:.50}")
            patterns.append(_FORMATS[schema["format"]])
        terminal, rest = text_until(patterns, excluded, words, end)
        name = self._name().upper()
        self.lines.append(f"{name}: {terminal}")
        return f"{name} {rest}"

    def _pattern(self, pattern: str, where: str) -> str:
        """A pattern for a whole text that JSON Schema looks for in it."""
        inner = pattern.removeprefix("^")
        inner = inner[:-1] if inner.endswith("$") and not inner.endswith("\\$") else inner
        bare = re.sub(r"\\.|\[(\\.|[^\]\\])*\]", "", inner)
        if "^" in bare or "$" in bare or "\\b" in inner or ("|" in bare and inner != pattern):
            raise self._refused(where, f"the pattern {pattern!r:.50}")
        start = "" if pattern.startswith("^") else ANY
        end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else ANY
        return f"{start}({ascii_classes(inner)}){end}".replace("/", "\\x{2F}").replace("\n", "\\n")

    def _json(self, schema: Any, where: str) -> str:
        text = dump_schema(schema)
        if re.search(r'"\$ref": "(?!#/(\$defs|definitions)/)', text):
            raise self._refused(where, "a reference that does not lead to $defs")
        if isinstance(schema, Mapping):
            kept = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
            text = dump_schema({**kept, **schema})
        return json_value("{}" if schema is True else text)

    def _check(self, schema: Mapping[str, Any], known: frozenset[str] | set[str], where: str) -> None:
        for key in schema:
            if key not in known and key not in _NOTES:
                raise self._refused(where, f"the keyword {key!r:.50}")

    def _refused(self, where: str, what: str) -> Unsupported:
        return Unsupported(
            f"tools: a required call of {self._tool.name} has {where} with {what}, which this model's format "
            'of calls cannot constrain; use tool_choice "auto", or simplify the schema',
            param="tools",
        )

    def _rule(self, expression: str) -> str:
        name = self._name()
        self.lines.append(f"{name}: {expression}")
        return name

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}_{self._count}"


MAX_CALLS = 8  # in one turn


def call_grammar(tools: Tools) -> Grammar:
    """A call as JSON, for prompts of your own: {"name": …, "arguments": {…}}.

    >>> call_grammar([{"name": "now"}]).kind
    'json'
    """
    calls = []
    definitions: dict[str, object] = {}
    for tool in check_tools(tools):
        arguments = json.loads(tool.schema)
        definitions |= arguments.pop("$defs", {})
        properties = {"name": {"const": tool.name}, "arguments": arguments}
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        )
    schema: dict[str, object] = {"anyOf": calls} if len(calls) > 1 else calls[0]
    return Grammar.json({**schema, "$defs": definitions} if definitions else schema)


def required_calls(layout: CallFormat, tools: list[Tool], one: bool, thinks: bool = False) -> Grammar:
    """One call, or several, of these tools in a format.

    If the model may think before it calls, its reasoning is not part of the grammar, but for formats in which
    it is a message before that of the call.
    """
    start = (layout.opening + layout.before).removeprefix(layout.begun)
    first = start if thinks else layout.block + start
    has_more = not one and layout.joint is not None
    opening, closing = layout.thoughts
    covers = bool(opening) and thinks
    rules = [f"thought: {items(opening)} THOUGHT? {items(closing)}", "THOUGHT: /(?s:.+)/"] if covers else []
    rules += [f"final: {items(layout.final)}"] if covers else []
    calls = f"call (more call){{0,{MAX_CALLS - 1}}}" if has_more else "call"
    rules.append(f"start: {'thought? ' if covers else ''}first {calls} last")
    rules += [f"first: {items(first)}", f"last: {items(layout.after + layout.closing)}"]
    if has_more:
        rules.append(f"more: {items(layout.after + (layout.joint or '') + layout.before)}")
    rules.append("call: " + " | ".join(f"call{i}" for i in range(len(tools))))
    for i, tool in enumerate(tools):
        arguments = Rules(layout.encoding, tool, f"call{i}")
        rules.append(f"call{i}: {items(tool.name + layout.between)} {arguments.start}")
        rules += arguments.lines
    text = "\n".join([*rules, f"ID: /{layout.ids}/"])
    check_size(text, "the description of the tools", "tools")
    return Grammar("tools", text, TURN) if covers else Grammar("tools", text)


def calls_or_json(calls: Grammar, answer: Grammar) -> Grammar:
    """Calls as `required_calls` has them, or JSON that fits the schema of an answer."""
    rules = re.sub("^start:", "calls:", calls.text, count=1, flags=re.MULTILINE)
    said = "thought? final answer" if calls.covers_reasoning else "answer"
    text = f"start: calls | {said}\n{rules}\nanswer: {json_value(answer.text)}"
    return Grammar("tools", text, calls.options)
