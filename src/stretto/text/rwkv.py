"""RWKV's tokenizer: the longest token that fits, again and again, over bytes; there are no merges or words.

A file spells tokens as Python spells bytes: `\\n`, `\\xe4`, `\\\\`.
"""

from __future__ import annotations

import re

from stretto.errors import InvalidRequest, ModelError
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import TOKENS, TokenType, read_flag, read_vocabulary
from stretto.weights.metadata import Metadata

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
MAX_TOKEN_BYTES = 1024


class RWKVTokenizer(Tokenizer):
    """An RWKV vocabulary from a file's metadata."""

    kind = "rwkv"
    name = "rwkv"

    def __init__(self, metadata: Metadata) -> None:
        vocabulary = read_vocabulary(metadata, bos=None, eos=None, unknown=None)
        super().__init__(
            vocabulary,
            add_bos=read_flag(metadata, "add_bos_token", False),
            add_eos=read_flag(metadata, "add_eos_token", False),
        )
        self._ids: dict[bytes, int] = {}
        for text, token in vocabulary.of_type(TokenType.NORMAL, TokenType.UNDEFINED).items():
            data = unescape_bytes(text)
            if len(data) > MAX_TOKEN_BYTES:
                raise ModelError(f"token {token} has {len(data)} bytes", field=TOKENS)
            if data:
                self._ids.setdefault(data, token)
        # The lengths of tokens by their first two bytes, the longest first; of single bytes by one.
        lengths: dict[bytes, set[int]] = {}
        for data in self._ids:
            lengths.setdefault(data[:2], set()).add(len(data))
        self._lengths = {start: sorted(sizes, reverse=True) for start, sizes in lengths.items()}

    def _encode_plain(self, text: str) -> list[int]:
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            size, token = self._longest(data, at)
            ids.append(token)
            at += size
        return ids

    def _longest(self, data: bytes, at: int) -> tuple[int, int]:
        """Size and id of the longest token at a place."""
        for size in (*self._lengths.get(data[at : at + 2], ()), 1):
            token = self._ids.get(data[at : at + size])
            if token is not None:
                return min(size, len(data) - at), token
        if self.vocabulary.unknown_id is not None:
            return 1, self.vocabulary.unknown_id
        raise InvalidRequest(
            f"the vocabulary has no token for byte 0x{data[at]:02X}; remove or replace its character",
            param="text",
            value=data[at],
        )

    def _plain_bytes(self, text: str) -> bytes:
        return unescape_bytes(text)


def unescape_bytes(text: str) -> bytes:
    """The bytes of a token as files spell it.

    >>> unescape_bytes(r"\\n\\xe4")
    b'\\n\\xe4'
    """

    def replace(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return bytes.fromhex(match[1].decode())
        return _NAMED.get(match[2], match[2])

    return _ESCAPE.sub(replace, text.encode())
