"""How many patterns one text has to fit at once: the parser's work doubles with each, and cannot stop."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from stretto.structured.formats import FORMATS
from stretto.structured.places import Schema, resolve
from stretto.structured.workers import check_budget

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
