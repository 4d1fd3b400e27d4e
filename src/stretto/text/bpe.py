"""Byte-level BPE (GPT-2, Llama 3, Qwen, …): the text is cut into words, then bytes are merged by rank.

The merging is done by the `tokenizers` library. Special tokens are taken out of the text before it comes
here, and are not in the vocabulary that the library gets: no plain text can turn into one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers

from stretto.errors import InvalidRequest, ModelError
from stretto.text.pretokenizers import KEY, PreTokenizer, cut_digits, pretokenizer
from stretto.text.tokenizer import CHUNK_CHARACTERS, Tokenizer, chunks
from stretto.text.vocabulary import PREFIX, TOKENS, TokenType, Vocabulary, read_flag, read_vocabulary
from stretto.weights.metadata import Metadata, Strings

MERGES = PREFIX + "merges"


def _alphabet() -> dict[str, int]:
    """The character for each byte: itself if it is printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {chr(byte if byte in printable else next(others)): byte for byte in range(256)}


ALPHABET = _alphabet()


class BPETokenizer(Tokenizer):
    """A byte-level BPE vocabulary from a file's metadata."""

    kind = "bpe"
    spells_alike = True

    def __init__(self, metadata: Metadata) -> None:
        self.name = metadata.text(KEY, "default")
        words = pretokenizer(self.name)
        found = find_merges(metadata)
        vocabulary = read_vocabulary(metadata, bos=None, eos=None, unknown=None)
        super().__init__(
            vocabulary,
            add_bos=read_flag(metadata, "add_bos_token", words.add_bos),
            add_eos=read_flag(metadata, "add_eos_token", False),
        )
        ids = vocabulary.ids.copy()
        for text in self.specials:
            ids.pop(text, None)
        merges = name_merges(found, metadata, vocabulary, ids)
        self._engine = _engine(ids, merges, words)
        self._has_seams, self._digits = words.words, words.digits
        self._present = bytes(byte for character, byte in ALPHABET.items() if character in vocabulary.ids)

    def _encode_plain(self, text: str) -> list[int]:
        self._check_bytes(text)
        is_long = len(text) > 2 * CHUNK_CHARACTERS and self._has_seams
        parts = [
            part
            for chunk in (chunks(text) if is_long else (text,))
            for part in cut_digits(chunk, self._digits)
        ]
        if len(parts) == 1:
            ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
            return ids
        batch = self._engine.encode_batch_fast(parts, add_special_tokens=False)
        return [token for encoding in batch for token in encoding.ids]

    def _check_bytes(self, text: str) -> None:
        """Raise for characters that the vocabulary cannot express; the library would drop them silently."""
        if len(self._present) == 256 or not (missing := text.encode().translate(None, self._present)):
            return
        at = next(i for i, character in enumerate(text) if missing[0] in character.encode())
        raise InvalidRequest(
            f"the vocabulary has no token for byte 0x{missing[0]:02X} of character U+{ord(text[at]):04X} "
            f"at {at} of {text[max(0, at - 10) : at + 10]!r}; remove or replace it",
            param="text",
            value=text[at],
        )

    def _plain_bytes(self, text: str) -> bytes:
        try:
            return bytes([ALPHABET[character] for character in text])
        except KeyError:  # a token that was added to the vocabulary later, in plain spelling
            return text.encode()


MergeIds = NDArray[np.int32]


def find_merges(metadata: Metadata) -> MergeIds | None:
    """The ids of left, right and both of each merge: int32[n, 3]; None where they are to be read one by one.

    It has to be called before the vocabulary is decoded.
    """
    tokens, merges = metadata.get(TOKENS), metadata.get(MERGES)
    return tokens.merge_ids(merges) if isinstance(tokens, Strings) and isinstance(merges, Strings) else None


def name_merges(
    found: MergeIds | None, metadata: Metadata, vocabulary: Vocabulary, ids: Mapping[str, int]
) -> list[tuple[str, str]]:
    """The merges of tokens in `ids`, in order; those of other tokens of the vocabulary are left out."""
    if found is None:
        return read_merges(metadata.strings(MERGES), ids, vocabulary.ids)
    tokens = vocabulary.tokens
    is_known = np.zeros(len(tokens), bool)
    is_known[np.fromiter(ids.values(), np.intp, len(ids))] = True
    left, right, _ = found[is_known[found].all(axis=1)].T.tolist()
    return list(zip(map(tokens.__getitem__, left), map(tokens.__getitem__, right), strict=True))


def read_merges(lines: list[str], ids: Mapping[str, int], known: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges of tokens in `ids`, in order; those of other known tokens are left out."""
    merges = [
        (left, right)
        for line in lines
        for left, _, right in [line.partition(" ")]
        if left in ids and right in ids and left + right in ids and " " not in right
    ]
    if len(merges) == len(lines):  # as in most files
        return merges
    merges = []
    for rank, line in enumerate(lines):
        left, space, right = line.partition(" ")
        if not (left and space and right) or " " in right:
            raise ModelError(f"merge {rank} is {line!r}, not two tokens with a space between", field=MERGES)
        if left in ids and right in ids and left + right in ids:
            merges.append((left, right))
        else:
            for text in (left, right, left + right):
                if text not in known:
                    raise ModelError(
                        f"merge {rank}, {line!r}, needs {text!r}, which is no token", field=MERGES
                    )
    return merges


def _engine(ids: dict[str, int], merges: list[tuple[str, str]], words: PreTokenizer) -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=words.ignore_merges))
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in words.patterns]
    bytelevel = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytelevel])
    return engine


# BPE over characters (Gemma 4): merges by rank as in `bpe`, but spaces spelled U+2581 and no words.
#
# The merging is done by the `tokenizers` library. A text is cut at line breaks only, and a run of them that
# is a token is taken whole. A character without a token becomes its bytes, as in <0xF0><0x9F><0x98><0x80>.

SPACE = "\u2581"
_NO_TOKEN = "\U0010ffff"  # no character, and never will be: a name that no token has
_BREAKS = re.compile(r"(\n+)")


class CharacterTokenizer(Tokenizer):
    """A vocabulary of Gemma 4's kind from a file's metadata. It has BOS, whatever a file says of it."""

    kind = "bpe"
    name = "gemma4"

    def __init__(self, metadata: Metadata) -> None:
        found = find_merges(metadata)
        vocabulary = read_vocabulary(metadata, bos=None, eos=None, unknown=None)
        for text, token in vocabulary.of_type(TokenType.USER_DEFINED).items():
            if SPACE in text:  # spelled as it is after spaces were replaced, so found by merging
                vocabulary.types[token] = TokenType.NORMAL
        super().__init__(vocabulary, add_bos=True, add_eos=read_flag(metadata, "add_eos_token", False))
        hidden = frozenset(self.specials)
        self._ids = {text: token for text, token in vocabulary.ids.items() if text not in hidden}
        merges = name_merges(found, metadata, vocabulary, self._ids)
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
