"""Tokens as hooks and other readers see them."""

from __future__ import annotations


class Shown:
    """One list for all readers of a list of tokens: what they write to it changes nothing of that one.

    It stays the same object, by which hooks know a sequence.
    """

    __slots__ = ("_copy",)

    def __init__(self) -> None:
        self._copy: list[int] = []

    def show(self, tokens: list[int]) -> list[int]:
        """The list, with these tokens."""
        if self._copy != tokens:
            self._copy[:] = tokens
        return self._copy

    def differs(self, tokens: list[int]) -> bool:
        """Whether a reader has written to it since it was shown."""
        return self._copy != tokens
