"""The vocabulary of a tokenizer.json: the model's own tokens and those added to it, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.text.vocabulary import BYTE_TEXT, TokenType
from stretto.weights.json_file import Fields, kind_of

MAX_TOKENS = 1 << 22


@dataclass(frozen=True)
class Added:
    """A token that was added to a vocabulary: found in a text before the model sees it."""

    text: str
    id: int
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


def read_added(described: Fields, others: Mapping[str, Any]) -> list[Added]:
    """The added tokens of a tokenizer.json, and those that only a tokenizer_config.json has."""
    added: dict[str, Added] = {}
    for value in described.list("added_tokens", []):
        token = _added(described, value, value.get("id") if isinstance(value, dict) else None)
        added[token.text] = token
    for number, value in others.items():
        token = _added(described, value, int(number) if number.isdecimal() and len(number) < 10 else None)
        added.setdefault(token.text, token)
        if token.special and not added[token.text].special:
            added[token.text] = token
    return list(added.values())


def _added(described: Fields, value: Any, number: Any) -> Added:
    if not isinstance(value, dict):
        raise described.error("added_tokens", f"must be objects, found {kind_of(value)}")
    fields = Fields(value, described.path, "added_tokens.")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MAX_TOKENS:
        raise fields.error("id", f"{number!r} is no id")
    if fields.flag("single_word", False):
        raise fields.error("single_word", "tokens that are found as whole words only are not supported")
    text = fields.text("content")
    if not text:
        raise fields.error("content", f"the text of token {number} is empty")
    flags = {name: fields.flag(name, False) for name in ("special", "lstrip", "rstrip", "normalized")}
    return Added(text, number, **flags)


def read_model_tokens(model: Fields, kind: str) -> dict[str, int]:
    """The tokens of the model itself, with their ids."""
    if kind == "Unigram":
        pairs = model.list("vocab")
        _check_count(model, len(pairs))
        texts = [_unigram_text(model, index, pair) for index, pair in enumerate(pairs)]
        ids = {text: index for index, text in enumerate(texts)}
        if len(ids) != len(texts):
            twice = next(text for index, text in enumerate(texts) if ids[text] != index)
            raise model.error("vocab", f"token {twice!r} is in the vocabulary twice")
        return ids
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict):
        raise model.error("vocab", f"must be an object, found {kind_of(vocabulary)}")
    _check_count(model, len(vocabulary))
    for text, token in vocabulary.items():
        if type(token) is not int or not 0 <= token < MAX_TOKENS:
            raise model.error("vocab", f"token {text!r} has id {token!r}; ids are integers from 0")
    return vocabulary


def _check_count(model: Fields, count: int) -> None:
    if not 0 < count <= MAX_TOKENS:
        raise model.error("vocab", f"{count} tokens; 1 to {MAX_TOKENS} are possible")


def _unigram_text(model: Fields, index: int, pair: Any) -> str:
    if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str):
        score = pair[1]
        if isinstance(score, (int, float)) and not isinstance(score, bool) and abs(score) < 1e30:
            return pair[0]
    raise model.error("vocab", f"token {index} is {pair!r:.80}, not a text with its score")


def list_tokens(plain: Mapping[str, int], added: Iterable[Added], model: Fields) -> list[str]:
    """All tokens by id; ids that nothing has are empty texts."""
    texts: dict[int, str] = {}
    for text, token in plain.items():
        if texts.setdefault(token, text) != text:
            raise model.error("vocab", f"tokens {texts[token]!r} and {text!r} have the same id, {token}")
    for one in added:
        token = plain.get(one.text, one.id)  # the vocabulary's own id counts, as in the library
        if texts.setdefault(token, one.text) != one.text:
            raise ModelError(
                f"tokens {texts[token]!r} and {one.text!r} have the same id, {token}",
                path=model.path,
                field="added_tokens",
            )
    tokens = [""] * (max(texts) + 1)
    for token, text in texts.items():
        tokens[token] = text
    return tokens


def list_types(
    tokens: list[str],
    ids: Mapping[str, int],
    added: Iterable[Added],
    specials: Iterable[str],
    unknown: int | None,
    has_bytes: bool,
) -> NDArray[np.int8]:
    """The type of each token; `specials` are texts that a configuration names."""
    types = np.full(len(tokens), TokenType.NORMAL, np.int8)
    if has_bytes:
        bytes_ = [ids[text] for text in ids if len(text) == 6 and BYTE_TEXT.fullmatch(text)]
        types[bytes_] = TokenType.BYTE
    types[[index for index, text in enumerate(tokens) if not text]] = TokenType.UNUSED
    for one in added:
        types[ids[one.text]] = TokenType.CONTROL if one.special else TokenType.USER_DEFINED
    for text in specials:
        if text in ids:
            types[ids[text]] = TokenType.CONTROL
    if unknown is not None:
        types[unknown] = TokenType.UNKNOWN
    return types
