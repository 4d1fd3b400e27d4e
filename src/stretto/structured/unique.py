"""`uniqueItems` while an array is written: tokens that would repeat an item are masked.

The parser cannot remember items, so a scanner reads the text beside it. Only tokens that can end an item are
looked at: within a string those whose text up to the quotation mark would complete an earlier item.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.structured.overlap import list_values
from stretto.structured.places import NotExpressible, Schema, dereference

# Reads JSON as it is written, byte by byte, and says when an item of an array repeats an earlier one.

UNIQUE_KEY = "x-unique-items"  # in a rewritten schema: arrays here are checked as they are written
_SPACE = b" \t\n\r"
_LITERALS = {ord("t"): True, ord("f"): False, ord("n"): None}


class Repeated(Exception):
    """An item is there already."""


class Level:
    """An array or object that is open."""

    __slots__ = ("candidates", "expects_key", "index", "is_array", "key", "start", "used")

    def __init__(self, is_array: bool, candidates: list[dict[str, Any]], start: int) -> None:
        self.is_array = is_array
        self.candidates = candidates  # the schemas that may describe it
        self.start = start  # where it begins in the text
        self.index = 0
        self.key = ""
        self.expects_key = not is_array
        unique = is_array and any(UNIQUE_KEY in schema for schema in candidates)
        self.used: dict[Any, bytes] | None = {} if unique else None  # the items so far, as they are written

    def copy(self) -> Level:
        """An independent copy."""
        twin = Level.__new__(Level)
        twin.is_array, twin.candidates, twin.start = self.is_array, self.candidates, self.start
        twin.index, twin.key, twin.expects_key = self.index, self.key, self.expects_key
        twin.used = None if self.used is None else dict(self.used)
        return twin


class Scanner:
    """The state of a text that is JSON, as far as it has been written."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.text = bytearray()
        self.levels: list[Level] = []
        self.mode = "value"  # "value", "string", "escape", "number", "literal", "after"
        self.start = 0  # of the string, number or literal
        self._is_key = False

    def copy(self) -> Scanner:
        """An independent copy."""
        twin = Scanner(self.root)
        twin.text = bytearray(self.text)
        twin.levels = [level.copy() for level in self.levels]
        twin.mode, twin.start, twin._is_key = self.mode, self.start, self._is_key
        return twin

    @property
    def is_watching(self) -> bool:
        """Whether an array whose items differ is open."""
        return any(level.used is not None for level in self.levels)

    @property
    def in_item(self) -> Level | None:
        """The array whose items differ, if the text stands directly within one of its items or before it."""
        level = self.levels[-1] if self.levels else None
        return level if level is not None and level.used is not None else None

    def rests(self) -> set[bytes]:
        """What would complete the items that are being written as ones that are there already."""
        found: set[bytes] = set()
        for level, inner in zip_longest(self.levels, self.levels[1:]):
            if not level.used:
                continue
            begun = b"" if self.mode in ("value", "after") else bytes(self.text[self.start :])
            if inner is not None:
                begun = bytes(self.text[inner.start :])
            found |= {text[len(begun) :] for text in level.used.values() if text.startswith(begun)}
        return found - {b""} if self.mode != "number" else found

    def push(self, data: bytes) -> None:
        """Read on; raises `Repeated` at the byte that makes an item equal to an earlier one."""
        for byte in data:
            self.text.append(byte)
            self._read(byte)

    def copy_push(self, data: bytes) -> bool:
        """Whether a copy could read on without an item that is there already."""
        try:
            self.copy().push(data)
        except Repeated:
            return False
        return True

    def _read(self, byte: int) -> None:
        if self.mode == "string":
            if byte == 0x5C:
                self.mode = "escape"
            elif byte == 0x22:
                self._end_string()
        elif self.mode == "escape":
            self.mode = "string"
        elif self.mode in ("number", "literal") and byte not in b",]} \t\n\r":
            return
        else:
            if self.mode in ("number", "literal"):
                self._end_value(self.start, len(self.text) - 1)
            self._structure(byte)

    def _structure(self, byte: int) -> None:
        if byte in _SPACE:
            return
        at = len(self.text) - 1
        level = self.levels[-1] if self.levels else None
        if byte == 0x22:
            self.mode, self.start = "string", at
            self._is_key = level is not None and level.expects_key
        elif byte in b"[{":
            self.levels.append(Level(byte == 0x5B, self._candidates(), at))
            self.mode = "value"
        elif byte in b"]}":
            closed = self.levels.pop()
            self._end_value(closed.start, at + 1)
        elif byte == 0x2C and level is not None:
            level.index += 1
            level.expects_key = not level.is_array
            self.mode = "value"
        elif byte == 0x3A:
            self.mode = "value"
        else:
            self._begin_scalar(byte, level, at)

    def _begin_scalar(self, byte: int, level: Level | None, at: int) -> None:
        self.mode = "literal" if byte in _LITERALS else "number"
        self.start = at
        used = None if level is None else level.used
        if used and byte in _LITERALS and canonical(_LITERALS[byte]) in used:
            raise Repeated  # at its first letter: nothing else could follow

    def _end_string(self) -> None:
        if self._is_key:
            level = self.levels[-1]
            level.key = _decoded(bytes(self.text[self.start :]))
            level.expects_key = False
            self.mode = "after"
            return
        self._end_value(self.start, len(self.text))

    def _end_value(self, start: int, end: int) -> None:
        self.mode = "after"
        level = self.levels[-1] if self.levels else None
        if level is None or level.used is None:
            return
        text = bytes(self.text[start:end])
        value = canonical(json.loads(text))
        if value in level.used:
            raise Repeated
        level.used[value] = text

    def _candidates(self) -> list[dict[str, Any]]:
        """The schemas that may describe the value that begins here: never too few."""
        if not self.levels:
            return self.spread([self.root])
        return self.spread(self.of_child(self.levels[-1]))

    def of_child(self, level: Level) -> list[Schema]:
        """The schemas of the value that comes next within an array or object."""
        found: list[Schema] = []
        for schema in level.candidates:
            if level.is_array:
                prefix = schema.get("prefixItems", [])
                if level.index < len(prefix):
                    found.append(prefix[level.index])
                elif "items" in schema:
                    found.append(schema["items"])
                continue
            if level.key in schema.get("properties", {}):
                found.append(schema["properties"][level.key])
            found += schema.get("patternProperties", {}).values()
            if "additionalProperties" in schema:
                found.append(schema["additionalProperties"])
        return found

    def spread(self, schemas: list[Schema]) -> list[dict[str, Any]]:
        """Schemas with those that are applied to the same value: of `allOf`, `anyOf` and references."""
        found: list[dict[str, Any]] = []
        seen: set[int] = set()
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, bool) or id(schema) in seen:
                continue
            seen.add(id(schema))
            found.append(schema)
            waiting += [*schema.get("allOf", []), *schema.get("anyOf", [])]
            if "$ref" in schema:
                try:
                    waiting.append(dereference(self.root, {"$ref": schema["$ref"]}))
                except NotExpressible:
                    found.append({UNIQUE_KEY: True})  # not known: so items differ
        return found

    def list_next_values(self, level: Level) -> dict[bytes, Any] | None:
        """The texts of all values that the next item may have, if each schema of it lists them."""
        values: list[Any] = []
        for schema in self.of_child(level):
            listed = self._listed(schema)
            if listed is None:
                return None
            values += listed
        if not values or any(isinstance(value, (list, dict, float)) for value in values):
            return None
        return {json.dumps(value, ensure_ascii=False).encode(): canonical(value) for value in values}

    def _listed(self, schema: Schema, depth: int = 8) -> list[Any] | None:
        if (values := list_values(schema)) is not None or isinstance(schema, bool) or depth == 0:
            return values
        if "$ref" in schema:
            try:
                return self._listed(dereference(self.root, schema), depth - 1)
            except NotExpressible:
                return None
        parts = [self._listed(part, depth - 1) for part in schema.get("anyOf", [])]
        if not parts or any(part is None for part in parts):
            return None
        return [value for part in parts for value in part or []]


def canonical(value: Any) -> Any:
    """A hashable form in which equal JSON values are equal: 1 and 1.0, not 1 and true."""
    if isinstance(value, dict):
        return ("{", frozenset((key, canonical(item)) for key, item in value.items()))
    if isinstance(value, list):
        return ("[", tuple(canonical(item) for item in value))
    if isinstance(value, (bool, str)) or value is None:
        return (type(value).__name__, value)
    return ("number", value)


def _decoded(text: bytes) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return ""


Mask = NDArray[np.uint32]
Follow = Callable[[list[int]], NDArray[np.intp]]  # the tokens that the parser allows after some tokens

MAX_TOKEN_BYTES = 32  # of a token that is tried
MAX_BRANCHES = 32  # with more ways on, one of them does not repeat an item
MAX_PATH = 12  # tokens ahead
MAX_TRIES = 300  # ways on, for one token of a text
_LEADS = (b"", b" ", b",", b", ")

_ENDS = frozenset(b',]} \t\n\r"')


class TokenTable:
    """The tokens of a vocabulary that can end an item, by their bytes. Made once for a vocabulary."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.closing: dict[bytes, list[int]] = {}  # tokens by what stands before their quotation mark
        self.ids: dict[bytes, list[int]] = {}  # all tokens by their bytes
        complex_ones, structural = [], []
        for token, data in enumerate(tokens):
            head, mark, tail = data.partition(b'"')
            if b"\\" in head or (mark and (b'"' in tail or b"}" in tail or b"]" in tail)):
                complex_ones.append(token)
            elif mark:
                self.closing.setdefault(head, []).append(token)
            self.ids.setdefault(data, []).append(token)
            if not _ENDS.isdisjoint(data) or data[:1] in (b"t", b"f", b"n"):
                structural.append(token)
        self.complex = np.array(complex_ones, np.intp)
        self.structural = np.array(structural, np.intp)


class UniqueItems:
    """The items of the arrays in one text whose items must differ."""

    def __init__(self, root: Schema, table: TokenTable) -> None:
        self._table = table
        self._scanner = Scanner(root)
        self._n_tried = 0

    def fork(self) -> UniqueItems:
        """An independent copy."""
        twin = UniqueItems.__new__(UniqueItems)
        twin._table, twin._scanner, twin._n_tried = self._table, self._scanner.copy(), 0
        return twin

    def push(self, tokens: Sequence[int]) -> bool:
        """Read tokens; False if an item is there twice."""
        try:
            for token in tokens:
                self._scanner.push(self._table.tokens[token])
        except Repeated:
            return False
        return True

    def n_valid(self, tokens: Sequence[int]) -> int:
        """Length of the longest prefix of `tokens` after which no item is there twice."""
        twin = self.fork()
        return next((n for n, token in enumerate(tokens) if not twin.push([token])), len(tokens))

    def restrict(self, mask: Mask, follow: Follow) -> None:
        """Take the tokens out of a mask that would make an item equal to an earlier one."""
        scanner = self._scanner
        if not scanner.is_watching:
            return
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
        for token in self._forbidden(bits, follow):
            mask[token // 32] &= ~np.uint32(1 << (token % 32))

    def _forbidden(self, allowed: NDArray[np.bool_], follow: Follow) -> list[int]:
        scanner, level = self._scanner, self._scanner.in_item
        domain = None if level is None else scanner.list_next_values(level)
        if level is not None and domain is not None:
            candidates = np.flatnonzero(allowed[: len(self._table.tokens)])
            return [token for token in candidates.tolist() if not self._fits(token, domain)]
        n_tokens = len(self._table.tokens)
        is_text = scanner.mode in ("string", "escape")
        tried = self._table.complex if is_text else self._table.structural
        tried = tried[tried < min(n_tokens, len(allowed))]
        found = [token for token in tried[allowed[tried]].tolist() if self._repeats(token)]
        if level is not None and level.used and scanner.mode == "string":
            found += self._string_ends(level)
        return found + self._dead_ends(allowed, follow)

    def _repeats(self, token: int) -> bool:
        return not self._scanner.copy_push(self._table.tokens[token])

    def _fits(self, token: int, domain: dict[bytes, Any]) -> bool:
        """Whether an item of few values can still become one that is not there yet."""
        twin = self._scanner.copy()
        try:
            twin.push(self._table.tokens[token])
        except Repeated:
            return False
        level = twin.in_item
        if level is None or level.used is None or len(twin.levels) != len(self._scanner.levels):
            return True
        left = [text for text, value in domain.items() if value not in level.used]
        if twin.mode == "after":
            return True
        begun = b"" if twin.mode == "value" else bytes(twin.text[twin.start :])
        return any(text.startswith(begun) for text in left)

    def _string_ends(self, level: Level) -> list[int]:
        """Tokens that would end the string as one that is there already."""
        scanner, table = self._scanner, self._table
        begun = bytes(scanner.text[scanner.start + 1 :])
        try:
            text = json.loads(b'"' + begun + b'"')
        except ValueError:  # within a character: whatever may end it is tried
            return [token for tokens in table.closing.values() for token in tokens if self._repeats(token)]
        found: list[int] = []
        for kind, value in level.used or ():
            if kind != "str" or not value.startswith(text):
                continue
            for rest in _spellings(value[len(text) :]):
                found += table.closing.get(rest, [])
        return found

    def _dead_ends(self, allowed: NDArray[np.bool_], follow: Follow) -> list[int]:
        """Tokens after which nothing could come but an item that is there already."""
        rests = self._scanner.rests()
        if not rests:
            return []
        longest = max(map(len, rests))
        self._n_tried = 0
        found = []
        for lead in _LEADS if self._scanner.mode in ("value", "after") else (b"",):
            starts = {rest[:n] for rest in rests for n in range(1, min(longest, MAX_TOKEN_BYTES) + 1)}
            for start in starts:
                for token in self._table.ids.get(lead + start, []):
                    if token < len(allowed) and allowed[token] and self._is_dead([token], follow):
                        found.append(token)
        return found

    def _is_dead(self, path: list[int], follow: Follow) -> bool:
        """Whether every way on from these tokens repeats an item; False if there are too many to try."""
        self._n_tried += 1
        twin = self.fork()
        if not twin.push(path):
            return True
        if self._n_tried > MAX_TRIES or not twin._scanner.rests():
            return False
        after = follow(path).tolist()
        if len(after) > MAX_BRANCHES or len(path) > MAX_PATH:
            return False
        return all(self._is_dead([*path, token], follow) for token in after)


def _spellings(text: str) -> set[bytes]:
    """How JSON may write a text: with and without escapes for other characters than ASCII."""
    return {json.dumps(text, ensure_ascii=flag)[1:-1].encode() for flag in (True, False)}
