"""From tokens to text, one token at a time, in whole characters."""

from __future__ import annotations

import codecs
from typing import Protocol

_utf8 = codecs.getincrementaldecoder("utf-8")


class Pieces(Protocol):
    """The part of a tokenizer that a detokenizer reads: the bytes of each token."""

    texts: tuple[dict[int, str], dict[int, str]]

    def next_piece(self, token: int, special: bool, fresh: bool) -> tuple[bytes, bool]:
        """The bytes of a token, and whether the one after it starts a fragment."""

    def starts_fragment(self, after: int | None) -> bool:
        """Whether the token after this one starts a fragment."""


class Detokenizer:
    """Turns tokens into text as they come; bytes of an incomplete character wait for the next token.

    The results of all `push` calls and `flush`, joined, equal `Tokenizer.decode` of all the tokens.

        detokenizer = tokenizer.detokenizer()
        for token in tokens:
            print(detokenizer.push(token), end="")
        print(detokenizer.flush())
    """

    def __init__(
        self, tokenizer: Pieces, special: bool = False, after: int | None = None, exact: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._exact = exact
        self._special = special
        self._after = after
        self._decoder = _utf8("replace")
        self._texts = tokenizer.texts[special]
        self._whole = True  # no bytes of an incomplete character wait
        self._fresh = not exact and tokenizer.starts_fragment(after)

    def push(self, token: int | bytes) -> str:
        """The text that this token, or these bytes, complete; may be empty."""
        usual = self._whole and not self._fresh
        if usual and type(token) is int and (known := self._texts.get(token)) is not None:
            return known
        if isinstance(token, (bytes, bytearray)):
            self._fresh = False
            return self._decode(token)
        piece, fresh = self._tokenizer.next_piece(token, self._special, self._fresh)
        self._fresh = fresh and not self._exact
        text = self._decode(piece)
        if usual and self._whole and not fresh:
            self._texts[token] = text
        return text

    def _decode(self, piece: bytes | bytearray) -> str:
        text = self._decoder.decode(piece)
        self._whole = not self._decoder.getstate()[0]
        return text

    def flush(self) -> str:
        """The rest: U+FFFD for a character that was never completed. Resets the detokenizer."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._whole = True
        self._fresh = not self._exact and self._tokenizer.starts_fragment(self._after)
        return rest

    def cut(self) -> str:
        """End an incomplete character here: U+FFFD for it, or nothing."""
        rest = "" if self._whole else self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._whole = True
        return rest

    def peek(self, token: int) -> str:
        """The text of this token if it were the last: U+FFFD for a character that it leaves incomplete."""
        if self._whole and not self._fresh and (known := self._texts.get(token)) is not None:
            return known
        twin = self.fork()
        return twin.push(token) + twin.flush()

    def fork(self) -> Detokenizer:
        """An independent copy with the same state."""
        twin = Detokenizer(self._tokenizer, self._special, self._after, self._exact)
        twin.state = self.state
        return twin

    @property
    def state(self) -> tuple[bytes, bool]:
        """The bytes of an incomplete character, and whether the next token starts a text."""
        return self._decoder.getstate()[0], self._fresh

    @state.setter
    def state(self, state: tuple[bytes, bool]) -> None:
        waiting, self._fresh = state
        self._decoder.setstate((waiting, 0))
        self._whole = not waiting
