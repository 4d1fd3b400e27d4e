"""The vocabulary in a model file: its tokens, their types, and the special ones.

Read once, and checked against itself: the libraries that do the work later are given nothing that does not
fit together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights.metadata import Metadata

# The tokens of a vocabulary that mark the parts of a fill-in-the-middle prompt; read by `vocabulary`.

# The keys of a file, with the names of older ones, and the texts of the tokens where no key is there.
_KEYS = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "repository": ("fim_rep_token_id",),
    "file": ("fim_sep_token_id",),
}
_TEXTS = {
    "prefix": "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> "
    "<|prefix|> [PREFIX]",
    "suffix": "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> "
    "<|suffix|> [SUFFIX]",
    "middle": "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> "
    "<|middle|>",
    "repository": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "file": "<|file_sep|>",
}
FILL_TEXTS = frozenset(" ".join(_TEXTS[role] for role in ("prefix", "suffix", "middle")).split())
INFILL_KEYS = tuple(key for keys in _KEYS.values() for key in keys)


@dataclass(frozen=True)
class InfillIds:
    """The ids of the markers. Without `middle` the suffix comes first, and the prefix is continued."""

    prefix: int
    suffix: int
    middle: int | None
    repository: int | None = None  # before the name of a repository
    file: int | None = None  # before the name of another file


def find_infill(ids: Mapping[str, int], named: Mapping[str, int]) -> InfillIds | None:
    """The markers by the ids under a file's keys, else by their texts; None if there are none."""
    found = {role: _find(role, ids, named) for role in _KEYS}
    prefix, suffix, middle = found["prefix"], found["suffix"], found["middle"]
    if prefix is None or suffix is None or (middle is None and "[SUFFIX]" not in ids):
        return None
    return InfillIds(prefix, suffix, middle, found["repository"], found["file"])


def _find(role: str, ids: Mapping[str, int], named: Mapping[str, int]) -> int | None:
    for key in _KEYS[role]:
        if key in named:
            return named[key]
    return next((ids[text] for text in _TEXTS[role].split() if text in ids), None)


PREFIX = "tokenizer.ggml."
TOKENS = PREFIX + "tokens"
SCORES = PREFIX + "scores"
TYPES = PREFIX + "token_type"

BYTE_TEXT = re.compile("<0x([0-9A-F]{2})>")


class TokenType(IntEnum):
    """The type of a token, by the codes of the file."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2  # for text that the vocabulary cannot express
    CONTROL = 3  # has no text, and is parsed only on request
    USER_DEFINED = 4  # parsed in every text before anything else
    UNUSED = 5
    BYTE = 6  # <0x0A>


# Many files do not say, or say wrongly, which tokens end a turn. They are known by their text, as llama.cpp
# knows them, and they are control tokens whatever the file says: a text must not end its own turn.
_END_TEXTS = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> "
    "<|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> "
    "<｜end▁of▁sentence｜> [e~[ "
    # after a finished file, in models for code
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> "
    "<|file_sep|>"
)
# In the format of gpt-oss these separate reasoning, calls and the answer, which would be one text without.
_SHOWN_TEXTS = "<|start|> <|channel|> <|message|> <|constrain|>"
_NAMED_ENDS = "eot eom fim_pad fim_rep fim_sep"
_ENDS = frozenset(_END_TEXTS.split())
_CONTROLS = _ENDS | FILL_TEXTS - {"[PREFIX]", "[SUFFIX]"}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens with their types, and the special ids."""

    tokens: list[str]
    ids: dict[str, int]  # without empty tokens, which no text can contain
    types: NDArray[np.int8]  # int8[n_vocab], the TokenType of each token
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]
    shown_ids: frozenset[int]  # control tokens that are shown in generated text
    infill: InfillIds | None = None  # the markers of a fill-in-the-middle prompt

    def of_type(self, *types: TokenType) -> dict[str, int]:
        """Text and id of the tokens of these types."""
        chosen = np.flatnonzero(np.isin(self.types, types)).tolist()
        return {self.tokens[token]: token for token in chosen if self.tokens[token]}


def read_vocabulary(metadata: Metadata, bos: int | None, eos: int | None, unknown: int | None) -> Vocabulary:
    """The file's vocabulary; `bos`, `eos` and `unknown` are the family's ids where the file gives none."""
    tokens = metadata.strings(TOKENS)
    if not tokens:
        raise ModelError("the vocabulary is empty; is this a complete model file?", field=TOKENS)
    ids = index_tokens(tokens, TOKENS)
    bos = read_id(metadata, "bos_token_id", len(tokens), bos)
    eos = read_id(metadata, "eos_token_id", len(tokens), eos)
    unknown = read_id(metadata, "unknown_token_id", len(tokens), unknown)
    types = _types(metadata, tokens, unknown)
    named = (read_id(metadata, f"{key}_token_id", len(tokens), None) for key in _NAMED_ENDS.split())
    ends = (token for token in named if token is not None)
    marks = {key: read_id(metadata, key, len(tokens)) for key in INFILL_KEYS}
    fills = {key: mark for key, mark in marks.items() if mark is not None}
    return make_vocabulary(tokens, ids, types, bos=bos, eos=eos, unknown=unknown, ends=ends, fills=fills)


def index_tokens(tokens: list[str], field: str) -> dict[str, int]:
    """The id of each token that is not empty; `ModelError` for a token that is there twice."""
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    empty = tokens.count("") if ids.pop("", None) is not None else 0
    if len(ids) + empty != len(tokens):
        raise ModelError(_first_duplicate(tokens), field=field)
    return ids


def make_vocabulary(
    tokens: list[str],
    ids: dict[str, int],
    types: NDArray[np.int8],
    *,
    bos: int | None,
    eos: int | None,
    unknown: int | None,
    ends: Iterable[int] = (),
    fills: Mapping[str, int] = MappingProxyType({}),
) -> Vocabulary:
    """A vocabulary in which the tokens that are known by their texts have their part; `types` is changed.

    `fills` are the ids of fill-in-the-middle tokens by their keys in a file.
    """
    texts = _CONTROLS & ids.keys()
    if "<|tool_response>" in texts:
        texts -= {"</s>"}  # in Gemma 4 a tag of HTML
    types[[ids[text] for text in texts]] = TokenType.CONTROL
    found = {ids[text] for text in _ENDS & texts}
    shown = {ids[text] for text in _SHOWN_TEXTS.split() if text in ids}
    if {"<|return|>", "<|call|>"} <= ids.keys() or {"<|flush|>", "<|calls|>"} <= ids.keys():
        parts = {ids["<|end|>"]} if "<|end|>" in ids else set()  # there it only ends a part of the answer
        found, shown = found - parts, shown | parts
    found.update(ends)
    if eos is not None:
        found.add(eos)
    shown -= found
    infill = find_infill(ids, fills)
    return Vocabulary(tokens, ids, types, bos, eos, unknown, frozenset(found), frozenset(shown), infill)


def read_scores(metadata: Metadata, n_tokens: int) -> NDArray[np.float32]:
    """The score of each token; pairs with a higher one are merged first."""
    scores = metadata.array(SCORES)
    _same_length(SCORES, len(scores), n_tokens)
    if scores.dtype.kind not in "fi":
        raise ModelError(f"must be an array of numbers, found {scores.dtype}", field=SCORES)
    scores = scores.astype(np.float32)
    if (wrong := np.flatnonzero(np.isnan(scores))).size:
        raise ModelError(f"the score of token {wrong[0]} is not a number", field=SCORES)
    return scores


def read_flag(metadata: Metadata, name: str, default: bool) -> bool:
    """The boolean at `tokenizer.ggml.<name>`."""
    return metadata.flag(PREFIX + name, default)


def _types(metadata: Metadata, tokens: list[str], unknown: int | None) -> NDArray[np.int8]:
    if TYPES not in metadata:
        inferred = (TokenType.BYTE if BYTE_TEXT.fullmatch(text) else TokenType.NORMAL for text in tokens)
        types = np.fromiter(inferred, np.int8, len(tokens))
        if unknown is not None:
            types[unknown] = TokenType.UNKNOWN
        return types
    array = metadata.array(TYPES)
    _same_length(TYPES, len(array), len(tokens))
    if array.dtype.kind not in "iu":
        raise ModelError(f"must be an array of integers, found {array.dtype}", field=TYPES)
    if (wrong := np.flatnonzero((array < 0) | (array > max(TokenType)))).size:
        raise ModelError(f"token {wrong[0]} has type {array[wrong[0]]}; 0 to 6 are known", field=TYPES)
    for index in np.flatnonzero(array == TokenType.BYTE).tolist():
        if not BYTE_TEXT.fullmatch(tokens[index]):
            raise ModelError(f"byte token {index} reads {tokens[index]!r}, not like <0x0A>", field=TYPES)
    return array.astype(np.int8)


def _same_length(key: str, length: int, n_tokens: int) -> None:
    if length != n_tokens:
        raise ModelError(f"has {length} entries for a vocabulary of {n_tokens} tokens", field=key)


def read_id(metadata: Metadata, name: str, n_tokens: int, default: int | None = None) -> int | None:
    """The id at `tokenizer.ggml.<name>`; `default` without the key, if the vocabulary has such an id."""
    key = PREFIX + name
    if key not in metadata:
        return default if default is not None and default < n_tokens else None
    value = metadata.integer(key)
    if not 0 <= value < n_tokens:
        raise ModelError(f"is {value}, outside the vocabulary of {n_tokens} tokens", field=key)
    return value


def _first_duplicate(tokens: list[str]) -> str:
    first: dict[str, int] = {}
    for index, text in enumerate(tokens):
        if text and first.setdefault(text, index) != index:
            return f"token {text!r} is in the vocabulary twice, as {first[text]} and {index}"
    raise AssertionError("there is a duplicate")
