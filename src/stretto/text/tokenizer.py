"""The base of all tokenizers: special tokens, BOS and EOS, bytes and text.

    tokenizer = load_tokenizer(file.metadata)                # stretto.text.loading
    ids = tokenizer.encode("Hello world")
    tokenizer.decode(ids)                                    # 'Hello world'
    tokenizer.encode("<|im_start|>user", special=True)       # special tokens parsed, BOS if the model asks

The subclasses turn plain text into ids: `bpe` by merges over bytes, `spm` and `unigram` by scores over
characters, `wordpiece` by the longest pieces of words, `rwkv` by the longest pieces of bytes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.errors import InvalidRequest, wrong_value
from stretto.options.names import OF_TOKENIZERS, no_attribute
from stretto.text.detokenizer import Detokenizer
from stretto.text.vocabulary import BYTE_TEXT, TokenType, Vocabulary

# Finds special tokens in a text: the leftmost first, and of those that begin there the longest.


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


_WHITE_SPACE = " \t\n\r\v\f"
CHUNK_CHARACTERS = 8192  # long texts are encoded in chunks of about this size

# Between two words, and where a line begins with a letter, no pre-tokenizer looks across. A line break after
# white space is no such place: whether it stands alone depends on what follows.
_SEAM = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=\S\n)(?=[^\W\d_])")


class Tokenizer(ABC):
    """Text to token ids and back. Safe to use from several threads.

    `bos_id` and `eos_id` are ids or None; `end_ids` holds every token that ends a generation; `specials`
    maps the text of each control token to its id; `add_bos` and `add_eos` say what the model asks for.
    """

    kind: str  # "bpe", "sentencepiece", "wordpiece", "unigram" or "rwkv"
    name: str  # the pre-tokenizer of a BPE model, llama.cpp's name of the kind for others
    space_prefix = False  # a space is put before each plain fragment
    spells_alike = False  # whether tokens with one text and type have the same bytes in all of this class
    strips_after: frozenset[int] = frozenset()  # special tokens after which white space is dropped
    strips_before: frozenset[int] = frozenset()  # and those before which it is

    def __init__(self, vocabulary: Vocabulary, *, add_bos: bool, add_eos: bool) -> None:
        self.vocabulary = vocabulary
        self.n_vocab = len(vocabulary.tokens)
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self.end_ids = vocabulary.end_ids
        self.add_bos = add_bos and self.bos_id is not None
        self.add_eos = add_eos and self.eos_id is not None
        # Around a text: BOS and EOS, or what stands for them.
        self.prefix_ids: tuple[int, ...] = () if self.bos_id is None else (self.bos_id,)
        self.suffix_ids: tuple[int, ...] = () if self.eos_id is None else (self.eos_id,)
        specials = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
        always = vocabulary.of_type(TokenType.USER_DEFINED)
        self.specials: Mapping[str, int] = MappingProxyType(specials)
        self._matched = frozenset(specials.values()) | frozenset(always.values())
        self._spaced_after = self._matched  # after these tokens a fragment begins, with a space put before it
        self._match_always = Matcher(always)
        self._match_all = Matcher({**always, **specials})
        self._bytes = _Bytes(self, special=False)
        self._bytes_special = _Bytes(self, special=True)
        # Of tokens that are whole characters, in the middle of a text: without and with special ones.
        self.texts: tuple[dict[int, str], dict[int, str]] = ({}, {})

    def encode(
        self, text: str, special: bool = False, bos: bool | None = None, after: int | None = None
    ) -> list[int]:
        """The ids of `text`.

        `special=True` finds special tokens in the text, and adds BOS and EOS as the model asks. With
        `bos=False` it only finds them; `bos=True` puts BOS in front whatever the model asks. `after` is the
        special token before this text in a conversation.

            tokenizer.encode("Hello")                                   # plain: nothing in it is special
            tokenizer.encode("<|im_end|>", special=True, bos=False)     # one token
        """
        _check_text(text)
        ids: list[int] = []
        if bos or (bos is None and special and self.add_bos):
            if not self.prefix_ids:
                raise InvalidRequest(
                    "bos=True, but this vocabulary has no BOS token; leave it out", param="bos", value=True
                )
            ids += self.prefix_ids
        inner = False
        parts = (self._match_all if special else self._match_always).split(text)
        for part, following in zip_longest(parts, parts[1:]):
            if isinstance(part, int):
                ids.append(part)
                after, inner = part, True
                continue
            if after in self.strips_after:
                part = part.lstrip(_WHITE_SPACE)
            if following in self.strips_before:
                part = part.rstrip(_WHITE_SPACE)
            after = None
            if part:
                ids += self._encode_fragment(part, inner)
        if self.add_eos and (special if bos is None else bos):
            ids += self.suffix_ids
        return ids

    def encode_inside(self, text: str) -> list[int]:
        """The ids of a text in the middle of another: no BOS, no space in front."""
        _check_text(text)
        ids: list[int] = []
        for part in self._match_always.split(text):
            ids += [part] if isinstance(part, int) else self._encode_plain(part)
        return ids

    def _encode_fragment(self, text: str, inner: bool) -> list[int]:
        """The ids of a plain fragment at the start of a text or, if `inner`, after a special token."""
        return self._encode_plain(f" {text}" if self.space_prefix else text)

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of `ids`; control tokens show if `special=True`, bytes that are no text as U+FFFD."""
        return b"".join(self.pieces(ids, special)).decode("utf-8", "replace")

    def detokenizer(
        self, special: bool = False, after: int | None = None, exact: bool = False
    ) -> Detokenizer:
        """Decodes token by token. `after` is the token before the first one, where a text is continued.

        With `exact` every token gives its own bytes, and no space is taken away where a fragment begins.

        detokenizer = tokenizer.detokenizer(after=prompt[-1])
        """
        return Detokenizer(self, special, after, exact)

    def same_as(self, other: Tokenizer) -> bool:
        """Whether each id has the same bytes in both, and the same ids end a text."""
        if self is other:
            return True
        if self.n_vocab != other.n_vocab or self.end_ids != other.end_ids:
            return False
        mine, theirs = self.vocabulary, other.vocabulary
        spell_alike = self.spells_alike and type(self) is type(other) and mine.shown_ids == theirs.shown_ids
        if spell_alike and mine.tokens == theirs.tokens and np.array_equal(mine.types, theirs.types):
            return True  # found a hundred times as fast as token by token
        return all(self.token_bytes(token) == other.token_bytes(token) for token in range(self.n_vocab))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; none for control tokens but those that separate parts of an answer."""
        return self._bytes[self._check_id(token)]

    def all_bytes(self) -> list[bytes]:
        """The bytes of every token; control tokens are spelled out."""
        kinds = self.vocabulary.types.tolist()
        normal, spell = int(TokenType.NORMAL), self._plain_bytes
        return [
            spell(text) if kind == normal else self._bytes_special[token]
            for token, (text, kind) in enumerate(zip(self.vocabulary.tokens, kinds, strict=True))
        ]

    def piece(self, token: int) -> str:
        """The token as the vocabulary spells it, for display."""
        return self.vocabulary.tokens[self._check_id(token)]

    def spelled(self, token: int) -> str:
        """The text of a token within a text: with the space in front of it, control tokens spelled out."""
        return self._bytes_special[self._check_id(token)].decode("utf-8", "replace")

    def pieces(self, ids: Iterable[int], special: bool = False, fresh: bool = True) -> list[bytes]:
        """The bytes of each token. `fresh`: the first one starts a fragment (see `starts_fragment`)."""
        ids = self._check_ids(ids)
        table = self._bytes_special if special else self._bytes
        pieces = [table[token] for token in ids]
        if self.space_prefix and ids:
            # Take away the space that `encode` put before each fragment.
            at = [0] if fresh else []
            if not self._spaced_after.isdisjoint(ids):
                at += [i for i, token in enumerate(ids[:-1], 1) if token in self._spaced_after]
            for i in at:
                if ids[i] not in self._matched:
                    pieces[i] = pieces[i].removeprefix(b" ")
        return pieces

    def next_piece(self, token: int, special: bool, fresh: bool) -> tuple[bytes, bool]:
        """`pieces` for one token, and whether the one after it starts a fragment."""
        if type(token) is not int or not 0 <= token < self.n_vocab:
            token = self._check_id(token)
        piece = (self._bytes_special if special else self._bytes)[token]
        if token in self._matched:
            return piece, token in self._spaced_after
        return piece.removeprefix(b" ") if fresh and self.space_prefix else piece, False

    def starts_fragment(self, after: int | None) -> bool:
        """Whether the token after this one starts a fragment: at the start, and after a special token."""
        return after is None or self._check_id(after) in self._spaced_after

    @abstractmethod
    def _encode_plain(self, text: str) -> list[int]:
        """The ids of a fragment that contains no special token."""

    def _plain_bytes(self, text: str) -> bytes:
        """The bytes of a normal token spelled `text`."""
        return text.encode()

    def _check_id(self, token: int) -> int:
        try:
            number = index(token)
        except TypeError:
            number = -1
        if not 0 <= number < self.n_vocab or isinstance(token, bool):
            raise InvalidRequest(
                f"{token!r} is no token; ids are integers from 0 to {self.n_vocab - 1}",
                param="ids",
                value=token,
            )
        return number

    def _check_ids(self, ids: Iterable[int]) -> list[int]:
        try:
            ids = list(ids)
        except TypeError:
            raise wrong_value("ids", ids, "a list of integers") from None
        if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < self.n_vocab:
            return ids
        return [self._check_id(token) for token in ids]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.n_vocab} tokens>"

    if not TYPE_CHECKING:  # or every name would pass a type checker

        def __getattr__(self, name: str) -> Any:
            if name in OF_TOKENIZERS:
                raise no_attribute(f"{type(self).__name__!r} object", name, OF_TOKENIZERS)
            return object.__getattribute__(self, name)  # raises Python's own error


class _Bytes(dict[int, bytes]):
    """The bytes of each token, computed on first use."""

    def __init__(self, tokenizer: Tokenizer, special: bool) -> None:
        self._tokenizer, self._special = tokenizer, special

    def __missing__(self, token: int) -> bytes:
        vocabulary = self._tokenizer.vocabulary
        text, kind = vocabulary.tokens[token], int(vocabulary.types[token])  # NumPy's are slow to compare
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            value = text.encode() if self._special or token in vocabulary.shown_ids else b""
        elif kind == TokenType.BYTE and (byte := BYTE_TEXT.fullmatch(text)):
            value = bytes.fromhex(byte[1])
        elif kind == TokenType.USER_DEFINED:
            value = text.encode()
        else:
            value = self._tokenizer._plain_bytes(text)
        self[token] = value
        return value


def chunks(text: str, size: int = CHUNK_CHARACTERS) -> Iterator[str]:
    """The text in pieces of about `size` characters that can be encoded one by one.

    >>> list(chunks("one two three", 4))
    ['one two', ' three']
    """
    begin = 0
    while len(text) - begin > size and (seam := _SEAM.search(text, begin + size)):
        yield text[begin : seam.start()]
        begin = seam.start()
    yield text[begin:]


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(
            f"text must be a str, not {type(text).__name__}; decode bytes first", param="text", value=text
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"text has a lone surrogate, {text[error.start]!r} at character {error.start}; "
                "it is no Unicode text. Decode it with errors='replace'",
                param="text",
                value=text[error.start],
            ) from None
