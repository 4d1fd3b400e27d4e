"""WordPiece (BERT and its relatives): words are cut into the longest pieces that the vocabulary has.

The cutting is done by the `tokenizers` library. A file spells a piece that begins a word with U+2581 in
front and one that continues a word bare, where BERT's own vocabulary writes `word` and `##word`. The way back
is not exact: case, accents and white space may be lost, so `decode` gives words with one space between.
"""

from __future__ import annotations

import re
from dataclasses import replace

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from stretto.errors import InvalidRequest
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import PREFIX, TokenType, Vocabulary, read_flag, read_id, read_vocabulary
from stretto.weights.metadata import Metadata

SPACE = "\u2581"
MAX_WORD_CHARACTERS = 100  # a longer word is unknown
_NO_TEXT = "\U0010ffff"  # no character, and the normaliser drops it from every text
_UPPER = re.compile("[A-Z]")
_BRACKETS = re.compile(r"\u2581?[\[<].*[\]>]", re.DOTALL)  # such as [unused7]


class WordPieceTokenizer(Tokenizer):
    """A WordPiece vocabulary from a file's metadata. BOS is its [CLS], EOS its [SEP]."""

    kind = "wordpiece"
    name = "bert"
    space_prefix = True

    def __init__(self, metadata: Metadata) -> None:
        vocabulary = _with_special_ids(read_vocabulary(metadata, None, None, None), metadata)
        super().__init__(vocabulary, add_bos=True, add_eos=True)
        self._spaced_after = self._matched - {vocabulary.unknown_id}
        lowercase = read_flag(metadata, "normalizer.lowercase", not _has_capitals(vocabulary))
        strip_accents = read_flag(metadata, "normalizer.strip_accents", lowercase)
        hidden = frozenset(self.specials)
        pieces = {_spelling(text): token for text, token in vocabulary.ids.items() if text not in hidden}
        self._engine = tokenizers.Tokenizer(
            models.WordPiece(
                {**pieces, _NO_TEXT: self.n_vocab},
                unk_token=_NO_TEXT,
                continuing_subword_prefix=_NO_TEXT,
                max_input_chars_per_word=MAX_WORD_CHARACTERS,
            )
        )
        self._engine.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
        )
        self._engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def _encode_fragment(self, text: str, inner: bool) -> list[int]:
        return self._encode_plain(text)

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        return ids if self.n_vocab not in ids else self._known(ids)

    def _known(self, ids: list[int]) -> list[int]:
        unknown = self.vocabulary.unknown_id
        if unknown is None:
            raise InvalidRequest(
                "the text has a word that the vocabulary cannot express, and there is no token for unknown "
                "words; remove or replace it",
                param="text",
            )
        return [unknown if token == self.n_vocab else token for token in ids]

    def _plain_bytes(self, text: str) -> bytes:
        return (" " + text[1:] if text.startswith(SPACE) else text).encode()


def _spelling(text: str) -> str:
    """A piece of the file as the library is given it."""
    return text[1:] if text.startswith(SPACE) and len(text) > 1 else _NO_TEXT + text


def _has_capitals(vocabulary: Vocabulary) -> bool:
    """Whether pieces of words have capital letters: files do not always say that case is kept."""
    normal = vocabulary.of_type(TokenType.NORMAL)
    return any(_UPPER.search(text) and not _BRACKETS.fullmatch(text) for text in normal)


def _with_special_ids(vocabulary: Vocabulary, metadata: Metadata) -> Vocabulary:
    """The vocabulary with [CLS] as BOS, [SEP] as EOS, and control tokens marked as such."""

    def find(text: str, *keys: str) -> int | None:
        found = (read_id(metadata, key, len(vocabulary.tokens)) for key in keys if PREFIX + key in metadata)
        return next(found, vocabulary.ids.get(text))

    bos = find("[CLS]", "cls_token_id", "bos_token_id")
    eos = find("[SEP]", "seperator_token_id", "eos_token_id")
    unknown = find("[UNK]", "unknown_token_id")
    others = (find("[PAD]", "padding_token_id"), find("[MASK]", "mask_token_id"))
    for token in (bos, eos, *others):
        if token is not None:
            vocabulary.types[token] = TokenType.CONTROL
    if unknown is not None:
        vocabulary.types[unknown] = TokenType.UNKNOWN
    ends = vocabulary.end_ids if eos is None else vocabulary.end_ids | {eos}
    return replace(vocabulary, bos_id=bos, eos_id=eos, unknown_id=unknown, end_ids=ends)
