"""`uniqueItems` while an array is written: tokens that would repeat an item are masked.

The parser cannot remember items, so a scanner reads the text beside it. Only tokens that can end an item are
looked at: within a string those whose text up to the quotation mark would complete an earlier item.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.structured.places import Schema
from stretto.structured.scanner import Level, Repeated, Scanner

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
        domain = None if level is None else scanner.domain_of(level)
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
