"""Finds special tokens in a text: the leftmost first, and of those that begin there the longest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class Matcher:
    """Splits texts at the given tokens, in one pass, however many tokens there are.

    >>> Matcher({"<s>": 1, "<s>>": 2}).split("a<s>>b<")
    ['a', 2, 'b<']
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._trie: dict[str, Any] = {}  # character → subtree; "" → the id of the token that ends here
        for text, token in tokens.items():
            node = self._trie
            for character in text:
                node = node.setdefault(character, {})
            node[""] = token
        starts = "".join(re.escape(character) for character in self._trie)
        self._find_start = re.compile(f"[{starts}]").search if starts else None

    def split(self, text: str) -> list[str | int]:
        """The text as plain fragments (never empty) and token ids."""
        parts: list[str | int] = []
        begin = at = 0  # of the fragment; of the search
        while self._find_start is not None and (start := self._find_start(text, at)):
            at = start.start()
            token, end = self._longest(text, at)
            if token is None:
                at += 1
                continue
            if at > begin:
                parts.append(text[begin:at])
            parts.append(token)
            begin = at = end
        if begin < len(text):
            parts.append(text[begin:])
        return parts

    def _longest(self, text: str, start: int) -> tuple[int | None, int]:
        node, token, end = self._trie, None, start
        for at in range(start, len(text)):
            following = node.get(text[at])
            if following is None:
                break
            node = following
            if "" in node:
                token, end = node[""], at + 1
        return token, end
