"""Unigram (T5, XLM-RoBERTa and its relatives): the most probable cut of each word, spaces spelled U+2581.

The cutting is done by the `tokenizers` library, and so is the normalising, by the table of SentencePiece that
the file holds (`precompiled_charsmap`), which is checked before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, normalizers, pre_tokenizers

from stretto.errors import InvalidRequest, ModelError
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import PREFIX, TOKENS, TokenType, read_flag, read_scores, read_vocabulary
from stretto.weights.metadata import Metadata

# The normalisation table of a SentencePiece model (`precompiled_charsmap`), checked before it is used.
#
# The layout: the size of a trie in bytes (uint32, little-endian), the trie as a double array of uint32
# units, then the replacements, UTF-8 texts that each end with a zero byte. Libraries walk the trie without
# looking whether a step stays inside it, so that is made sure of here, for all steps at once.

MAX_BYTES = 16 << 20  # those of real models have 0.3 MB
_VALUE = np.uint32(1 << 31)  # marks a unit that is a value: where a replacement begins
_LEAF = np.uint32(1 << 8)  # the next unit is a value
_BLOCK = 256  # a step goes anywhere in the block of 256 units that it leads to


def read_charsmap(array: NDArray[Any], field: str) -> bytes:
    """The table as bytes; `ModelError` where a walk over it could leave it."""
    if array.dtype.itemsize != 1 or array.dtype.kind not in "iu" or array.size > MAX_BYTES:
        raise ModelError(
            f"must be an array of at most {MAX_BYTES} bytes, found {array.size} of {array.dtype}", field=field
        )
    return check_charsmap(array.tobytes(), field)


def check_charsmap(data: bytes, field: str) -> bytes:
    """The same table, if every walk over it stays inside; none if it is empty."""
    if not data:
        return data
    size = int.from_bytes(data[:4], "little")
    if len(data) < 8 or size % 4 or not 4 * _BLOCK <= size <= len(data) - 4 or size % (4 * _BLOCK):
        raise ModelError(
            f"a trie of {size} bytes in a table of {len(data)}; the file is damaged", field=field
        )
    units = np.frombuffer(data, "<u4", size // 4, 4)
    texts = data[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"its replacements are not UTF-8: {error}", field=field) from None
    steps = (units & _VALUE) == 0
    wide = (units >> np.uint32(9) & np.uint32(1)) << np.uint32(3)  # bit 9: the offset is in units of 256
    target = np.arange(len(units), dtype=np.uint32) ^ (units >> np.uint32(10) << wide)
    if (target[steps] >= len(units)).any():
        raise ModelError("a step of its trie leads out of it; the file is damaged", field=field)
    leaves = target[steps & ((units & _LEAF) != 0)]
    starts = units[leaves] & ~_VALUE
    if (starts >= len(texts)).any() or not texts.endswith(b"\0"):
        raise ModelError("a replacement lies outside the table; the file is damaged", field=field)
    if (np.frombuffer(texts, np.uint8)[starts] & 0xC0 == 0x80).any():
        raise ModelError("a replacement begins inside a character; the file is damaged", field=field)
    return data


SPACE = "\u2581"
CHARSMAP = PREFIX + "precompiled_charsmap"
_NO_TOKEN = "\U0010ffff"  # no character, and never will be: a name that no token has
_RUNS = tokenizers.Regex(r"\s+")


class UnigramTokenizer(Tokenizer):
    """A Unigram vocabulary from a file's metadata."""

    kind = "unigram"
    name = "t5"

    def __init__(self, metadata: Metadata) -> None:
        vocabulary = read_vocabulary(metadata, bos=None, eos=1, unknown=2)
        for text, token in vocabulary.of_type(TokenType.USER_DEFINED).items():
            if SPACE in text:  # spelled as it is after spaces were replaced, so found by its score
                vocabulary.types[token] = TokenType.NORMAL
        super().__init__(
            vocabulary,
            add_bos=read_flag(metadata, "add_bos_token", False),
            add_eos=read_flag(metadata, "add_eos_token", True),
        )
        self.space_prefix = read_flag(metadata, "add_space_prefix", True)
        self._spaced_after = self._matched - {vocabulary.unknown_id}
        self._byte_fallback = bool(np.count_nonzero(vocabulary.types == TokenType.BYTE) == 256)
        hidden = frozenset(self.specials)
        tokens = [
            f"{_NO_TOKEN}{token}" if not text or text in hidden else text
            for token, text in enumerate(vocabulary.tokens)
        ]
        scores = read_scores(metadata, self.n_vocab)
        if not np.isfinite(scores).all():
            raise ModelError(
                "a score is infinite; the file is damaged, convert it again", field=PREFIX + "scores"
            )
        pairs = [*zip(tokens, scores.tolist(), strict=True), (f"{_NO_TOKEN}?", float(scores.min()))]
        try:
            model = models.Unigram(pairs, self.n_vocab, self._byte_fallback)
        except Exception as error:
            raise ModelError(f"tokenizers does not accept the vocabulary: {error}", field=TOKENS) from None
        squeeze = read_flag(metadata, "remove_extra_whitespaces", True)
        charsmap = read_charsmap(metadata.array(CHARSMAP), CHARSMAP) if CHARSMAP in metadata else b""
        self._first = _engine(model, charsmap, squeeze, self.space_prefix)
        self._inside = _engine(model, charsmap, squeeze, False) if self.space_prefix else self._first

    def _encode_fragment(self, text: str, inner: bool) -> list[int]:
        return self._encode(self._first, text)

    def _encode_plain(self, text: str) -> list[int]:
        return self._encode(self._inside, text)

    def _encode(self, engine: tokenizers.Tokenizer, text: str) -> list[int]:
        ids: list[int] = engine.encode(text, add_special_tokens=False).ids
        if self.n_vocab not in ids:
            return ids
        unknown = self.vocabulary.unknown_id
        if unknown is None:
            raise InvalidRequest(
                "the text has a character that the vocabulary cannot express, and there is no token for "
                "unknown ones; remove or replace it",
                param="text",
            )
        return [unknown if token == self.n_vocab else token for token in ids]

    def _plain_bytes(self, text: str) -> bytes:
        return text.replace(SPACE, " ").encode()


def _engine(model: models.Unigram, charsmap: bytes, squeeze: bool, prefix: bool) -> tokenizers.Tokenizer:
    """The library's tokenizer; `squeeze` drops white space but one space between words."""
    engine = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    spaces = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always" if prefix else "never")
    if squeeze and prefix:
        engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    else:
        engine.pre_tokenizer = spaces
        if squeeze:
            steps += [normalizers.Replace(_RUNS, " "), normalizers.Strip(left=False, right=True)]
    if steps:
        engine.normalizer = normalizers.Sequence(steps)
    return engine
