"""BPE over characters (Gemma 4): merges by rank as in `bpe`, but spaces spelled U+2581 and no words.

The merging is done by the `tokenizers` library. A text is cut at line breaks only, and a run of them that
is a token is taken whole. A character without a token becomes its bytes, as in <0xF0><0x9F><0x98><0x80>.
"""

from __future__ import annotations

import re

import numpy as np
import tokenizers
from tokenizers import models

from stretto.errors import InvalidRequest
from stretto.text.bpe import MERGES, read_merges
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import TokenType, read_flag, read_vocabulary
from stretto.weights.metadata import Metadata

SPACE = "\u2581"
_NO_TOKEN = "\U0010ffff"  # no character, and never will be: a name that no token has
_BREAKS = re.compile(r"(\n+)")


class CharacterTokenizer(Tokenizer):
    """A vocabulary of Gemma 4's kind from a file's metadata. It has BOS, whatever a file says of it."""

    kind = "bpe"
    name = "gemma4"

    def __init__(self, metadata: Metadata) -> None:
        vocabulary = read_vocabulary(metadata, bos=None, eos=None, unknown=None)
        for text, token in vocabulary.of_type(TokenType.USER_DEFINED).items():
            if SPACE in text:  # spelled as it is after spaces were replaced, so found by merging
                vocabulary.types[token] = TokenType.NORMAL
        super().__init__(vocabulary, add_bos=True, add_eos=read_flag(metadata, "add_eos_token", False))
        hidden = frozenset(self.specials)
        self._ids = {text: token for text, token in vocabulary.ids.items() if text not in hidden}
        merges = read_merges(metadata.strings(MERGES), self._ids, vocabulary.ids)
        missing = _NO_TOKEN
        while missing in self._ids:
            missing += _NO_TOKEN
        has_bytes = bool(np.count_nonzero(vocabulary.types == TokenType.BYTE) == 256)
        self._engine = tokenizers.Tokenizer(
            models.BPE(
                {**self._ids, missing: self.n_vocab}, merges, unk_token=missing, byte_fallback=has_bytes
            )
        )

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in _BREAKS.split(text.replace(" ", SPACE)):
            if part.startswith("\n") and part in self._ids:
                ids.append(self._ids[part])
            elif part:
                ids += self._known(self._engine.encode(part, add_special_tokens=False).ids, part)
        return ids

    def _known(self, ids: list[int], text: str) -> list[int]:
        """Put the vocabulary's own unknown token where the library has none."""
        if self.n_vocab not in ids:
            return ids
        unknown = self.vocabulary.unknown_id
        if unknown is None:
            wrong = next(c for c in text if c not in self._ids)
            raise InvalidRequest(
                f"the vocabulary has no token for {wrong!r}; remove or replace it", param="text", value=wrong
            )
        return [unknown if token == self.n_vocab else token for token in ids]

    def _plain_bytes(self, text: str) -> bytes:
        return text.replace(SPACE, " ").encode()
