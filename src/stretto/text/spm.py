"""SentencePiece BPE (Llama 2, Mistral, Gemma, …): characters are merged by score, spaces spelled U+2581.

The merging is done by the `sentencepiece` library, which is given the vocabulary as the protobuf message it
reads from its own files. A character without a token becomes its bytes, as in <0xF0><0x9F><0x98><0x80>.
"""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from stretto.errors import InvalidRequest, ModelError
from stretto.text.tokenizer import CHUNK_CHARACTERS, Tokenizer, chunks
from stretto.text.vocabulary import TOKENS, TokenType, Vocabulary, read_flag, read_scores, read_vocabulary
from stretto.weights.metadata import Metadata

SPACE = "\u2581"
_NO_TOKEN = "\U0010ffff"  # no character, and never will be: a name that no token has
_WITH_SPACE = "<unk> <s> <|endoftext|>"  # special tokens of Phi-3 that keep the white space after them
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


class SPMTokenizer(Tokenizer):
    """A SentencePiece vocabulary from a file's metadata."""

    kind = "sentencepiece"
    name = "llama"

    def __init__(self, metadata: Metadata) -> None:
        vocabulary = read_vocabulary(metadata, bos=1, eos=2, unknown=0)
        for text, token in vocabulary.of_type(TokenType.USER_DEFINED).items():
            if SPACE in text:  # spelled as it is after spaces were replaced, so found by merging
                vocabulary.types[token] = TokenType.NORMAL
        super().__init__(
            vocabulary,
            add_bos=read_flag(metadata, "add_bos_token", True),
            add_eos=read_flag(metadata, "add_eos_token", False),
        )
        self.space_prefix = read_flag(metadata, "add_space_prefix", True)
        if re.search("phi-?3", str(metadata.get("general.name", "")).lower()):
            # Files do not say so: Phi-3 was trained without white space after its special tokens.
            kept = {vocabulary.ids.get(text) for text in _WITH_SPACE.split()}
            self.strips_after = self._matched - kept
        self._byte_fallback = bool(np.count_nonzero(vocabulary.types == TokenType.BYTE) == 256)
        scores = read_scores(metadata, self.n_vocab)
        self._engine = sentencepiece.SentencePieceProcessor()
        try:
            self._engine.LoadFromSerializedProto(_model(vocabulary, scores, self._byte_fallback))
        except RuntimeError as error:
            raise ModelError(f"sentencepiece does not accept the vocabulary: {error}", field=TOKENS) from None

    def _encode_plain(self, text: str) -> list[int]:
        if len(text) <= 2 * CHUNK_CHARACTERS or not self._has_seams:
            return self._known(self._engine.EncodeAsIds(text), text)
        return self._known([i for chunk in chunks(text) for i in self._engine.EncodeAsIds(chunk)], text)

    def _known(self, ids: list[int], text: str) -> list[int]:
        """Put the vocabulary's own unknown token where sentencepiece has none."""
        if self._byte_fallback or self.n_vocab not in ids:
            return ids
        unknown = self.vocabulary.unknown_id
        if unknown is None:
            wrong = next(c for c in text if self.n_vocab in self._engine.EncodeAsIds(c))
            raise InvalidRequest(
                f"the vocabulary has no token for {wrong!r}; remove or replace it", param="text", value=wrong
            )
        return [unknown if token == self.n_vocab else token for token in ids]

    @cached_property
    def _has_seams(self) -> bool:
        """Whether no token reaches across the seams of `chunks`, so that a text may be cut there."""
        texts = "\0".join(self.vocabulary.tokens)
        return not any(before[-1:] in _LETTERS for before in texts.split(SPACE)[:-1]) and not any(
            after[:1].isalpha() for after in texts.split("\n")[1:]
        )

    def _plain_bytes(self, text: str) -> bytes:
        return text.replace(SPACE, " ").encode()


# -- the message: fields are a tag (number << 3 | wire type), then a varint, a float or a length and bytes --

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # sentencepiece's types of pieces

# After the text of a piece: field 2, the score, and field 3, the type.
_TAIL = np.dtype([("tag2", "u1"), ("score", "<f4"), ("tag3", "u1"), ("type", "u1")])


def _model(vocabulary: Vocabulary, scores: NDArray[np.float32], byte_fallback: bool) -> bytes:
    """The vocabulary as sentencepiece's ModelProto.

    The library needs exactly one unknown piece, so it gets one of its own, after all others. It gets
    special tokens as control pieces, which keep their ids and are never found in a text.
    """
    types = np.full(len(TokenType), _NORMAL, np.uint8)
    types[[TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED]] = _CONTROL
    types[TokenType.BYTE] = _BYTE if byte_fallback else _CONTROL
    texts = [text.encode() for text in vocabulary.tokens]
    for empty in (i for i, text in enumerate(texts) if not text):
        texts[empty] = f"{_NO_TOKEN}{empty}".encode()
    unknown = _NO_TOKEN
    while unknown in vocabulary.ids:
        unknown += _NO_TOKEN
    texts.append(unknown.encode())
    tails = np.zeros(len(texts), _TAIL)
    tails["tag2"], tails["tag3"] = 0x15, 0x18
    tails["score"][:-1] = scores
    tails["type"] = np.append(types[vocabulary.types], _UNKNOWN)

    heads = {size: _piece_head(size) for size in {len(text) for text in texts}}
    tail, step = tails.tobytes(), _TAIL.itemsize
    pieces = [heads[len(text)] + text + tail[i * step : (i + 1) * step] for i, text in enumerate(texts)]
    trainer = b"\x18\x02" + b"\x98\x02" + bytes([byte_fallback])  # 3: model type BPE; 35: byte fallback
    # 1: name; 3: no space in front; 4: keep all spaces; 5: spell them U+2581
    normalizer = b"\x0a\x08identity" + b"\x18\x00" + b"\x20\x00" + b"\x28\x01"
    pieces += [b"\x12", _varint(len(trainer)), trainer, b"\x1a", _varint(len(normalizer)), normalizer]
    return b"".join(pieces)


def _piece_head(size: int) -> bytes:
    """The bytes before a piece's text of `size` bytes."""
    text = b"\x0a" + _varint(size)
    return b"\x0a" + _varint(len(text) + size + _TAIL.itemsize) + text


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])
