"""Tokenizers of Hugging Face folders, from `tokenizer.json`: BPE, WordPiece and Unigram.

The `tokenizers` library does the work, but never sees a special token: they are taken out of its vocabulary,
so that no plain text can turn into one, and are found in a text by us, on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, models

from stretto.errors import InvalidRequest, ModelError
from stretto.text.bpe import ALPHABET
from stretto.text.folder_config import TokenizerConfig
from stretto.text.json_steps import Steps
from stretto.text.tokenizer import Matcher, Tokenizer
from stretto.text.vocabulary import BYTE_TEXT, TokenType, index_tokens, make_vocabulary
from stretto.weights.json_file import Fields, name_kind

# The vocabulary of a tokenizer.json: the model's own tokens and those added to it, checked.

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
        raise described.error("added_tokens", f"must be objects, found {name_kind(value)}")
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
        raise model.error("vocab", f"must be an object, found {name_kind(vocabulary)}")
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


SPACE = "\u2581"
KINDS = {"BPE": "bpe", "WordPiece": "wordpiece", "Unigram": "unigram"}
_NO_TOKEN = "\U0010ffff"  # no character, and never will be: a name that no token has


class JsonTokenizer(Tokenizer):
    """A tokenizer.json. `prefix_ids` and `suffix_ids` stand around a text, as its post-processor says."""

    name = "tokenizer.json"

    def __init__(self, described: Fields, config: TokenizerConfig) -> None:
        self.path = described.path
        model = described.object("model")
        kind = model.text("type", "BPE")
        if kind not in KINDS:
            raise model.error(
                "type", f"tokenizers of type {kind!r} are not supported, only {', '.join(KINDS)}"
            )
        self.kind = KINDS[kind]
        plain = read_model_tokens(model, kind)
        added = read_added(described, config.added)
        tokens = list_tokens(plain, added, model)
        ids = index_tokens(tokens, "model.vocab")
        unknown = _unknown_id(model, kind, plain)
        has_bytes = kind != "WordPiece" and model.flag("byte_fallback", False)
        types = list_types(tokens, ids, added, config.specials, unknown, has_bytes)
        prefix, suffix = _around(described, ids, config)
        bos = config.find_id(ids, "bos_token", "cls_token")
        eos = config.find_id(ids, "eos_token", "sep_token")
        bos = prefix[0] if bos is None and prefix else bos
        eos = suffix[-1] if eos is None and suffix else eos
        ends = [token for token in config.end_ids if token < len(tokens)]
        vocabulary = make_vocabulary(tokens, ids, types, bos=bos, eos=eos, unknown=unknown, ends=ends)
        super().__init__(vocabulary, add_bos=bool(prefix), add_eos=bool(suffix))
        self.prefix_ids, self.suffix_ids = prefix or self.prefix_ids, suffix or self.suffix_ids
        self.strips_before = frozenset(ids[one.text] for one in added if one.lstrip)
        self.strips_after = frozenset(ids[one.text] for one in added if one.rstrip)
        self._make_engines(described, model, kind, plain, added)

    def _make_engines(
        self, described: Fields, model: Fields, kind: str, plain: Mapping[str, int], added: list[Added]
    ) -> None:
        steps = Steps(described)
        scheme = steps.prefix
        self._bytelevel = steps.is_bytelevel
        self._continuing = model.text("continuing_subword_prefix", "##") if kind == "WordPiece" else None
        self._word_end = model.text("end_of_word_suffix", "") if kind == "BPE" else ""
        self.space_prefix = scheme != "never" or kind == "WordPiece"
        after = frozenset(self.prefix_ids) if scheme == "first" else self._matched
        self._spaced_after = after - {self.vocabulary.unknown_id}
        # Tokens that are found in the normalised text are left to the library, the others are found by us.
        within = [one for one in added if one.normalized and not one.special and steps.normalizer]
        within = [one for one in within if self.vocabulary.types[self.vocabulary.ids[one.text]] == _USER]
        if within:
            always = self.vocabulary.of_type(TokenType.USER_DEFINED)
            for one in within:
                always.pop(one.text, None)
            self._match_always, self._match_all = Matcher(always), Matcher({**always, **self.specials})
        known = {text: token for text, token in plain.items() if text not in self.specials}
        engine = _model(
            model, kind, known | {one.text: self.vocabulary.ids[one.text] for one in within}, self
        )
        self._first = steps.engine(engine, "first")
        self._inner = steps.engine(engine, "inner") if scheme == "first" else self._first
        self._inside = steps.engine(engine, "inside") if scheme != "never" else self._first
        for one in within:
            token = AddedToken(one.text, lstrip=one.lstrip, rstrip=one.rstrip, normalized=True)
            for made in {id(e): e for e in (self._first, self._inner, self._inside)}.values():
                made.add_tokens([token])

    def _encode_fragment(self, text: str, inner: bool) -> list[int]:
        return self._run(self._inner if inner else self._first, text)

    def _encode_plain(self, text: str) -> list[int]:
        return self._run(self._inside, text)

    def _run(self, engine: tokenizers.Tokenizer, text: str) -> list[int]:
        try:
            ids: list[int] = engine.encode(text, add_special_tokens=False).ids
        except BaseException as error:  # a panic of the library is no Exception
            if type(error).__name__ != "PanicException":
                raise
            raise ModelError(f"the tokenizers library failed: {error}", path=self.path) from None
        if not ids or max(ids) < self.n_vocab:
            return ids
        unknown = self.vocabulary.unknown_id
        if unknown is None:
            raise InvalidRequest(
                f"the text has characters that the vocabulary cannot express, in {text[:40]!r}; remove or "
                "replace them",
                param="text",
            )
        return [unknown if token >= self.n_vocab else token for token in ids]

    def _plain_bytes(self, text: str) -> bytes:
        if self._continuing is not None:
            inside = text.startswith(self._continuing)
            return (text.removeprefix(self._continuing) if inside else f" {text}").encode()
        end = b" " if self._word_end and text.endswith(self._word_end) else b""
        text = text.removesuffix(self._word_end) if end else text
        if self._bytelevel:
            try:
                return bytes([ALPHABET[character] for character in text]) + end
            except KeyError:  # a token that was added to the vocabulary later, in plain spelling
                return text.encode() + end
        return text.replace(SPACE, " ").encode() + end


_USER = int(TokenType.USER_DEFINED)


def _unknown_id(model: Fields, kind: str, plain: Mapping[str, int]) -> int | None:
    if kind == "Unigram":
        if "unk_id" not in model:
            return None
        return model.integer("unk_id", most=len(plain) - 1)
    name = model.text("unk_token", "")
    if name and name not in plain:
        raise model.error("unk_token", f"{name!r} is no token")
    return plain[name] if name else None


def _around(
    described: Fields, ids: Mapping[str, int], config: TokenizerConfig
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids before and after a single text: by the post-processor, else by tokenizer_config.json."""
    processors = [described.object("post_processor")] if "post_processor" in described else []
    for processor in list(processors):
        if processor.text("type", "") == "Sequence":
            children = [child for child in processor.list("processors") if isinstance(child, dict)][:64]
            processors += [Fields(child, described.path, "post_processor.") for child in children]
    for processor in processors:
        kind = processor.text("type", "")
        if kind in ("BertProcessing", "RobertaProcessing"):
            return (_pair_id(processor, "cls", ids),), (_pair_id(processor, "sep", ids),)
        if kind == "TemplateProcessing":
            return _template(processor, ids)
    bos, eos = config.find_id(ids, "bos_token"), config.find_id(ids, "eos_token")
    return (
        (bos,) if config.add_bos and bos is not None else (),
        (eos,) if config.add_eos and eos is not None else (),
    )


def _pair_id(processor: Fields, name: str, ids: Mapping[str, int]) -> int:
    value = processor.list(name)
    if not value or not isinstance(value[0], str) or value[0] not in ids:
        raise processor.error(name, f"{value!r:.80} is no token")
    return ids[value[0]]


def _template(processor: Fields, ids: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    before: list[int] = []
    after: list[int] = []
    found = False
    for piece in processor.list("single"):
        if isinstance(piece, dict) and "Sequence" in piece:
            found = True
            continue
        token = piece.get("SpecialToken") if isinstance(piece, dict) else None
        text = token.get("id") if isinstance(token, dict) else None
        if not isinstance(text, str) or text not in ids:
            raise processor.error("single", f"{piece!r:.80} is no token")
        (after if found else before).append(ids[text])
    if len(before) + len(after) > 64:
        raise processor.error("single", "more than 64 tokens around a text")
    return tuple(before), tuple(after)


def _model(model: Fields, kind: str, ids: Mapping[str, int], tokenizer: Tokenizer) -> models.Model:
    """The library's model of the plain tokens. Unknown text becomes an id after all others."""
    missing = _NO_TOKEN
    while missing in tokenizer.vocabulary.ids:
        missing += _NO_TOKEN
    known = {**ids, missing: tokenizer.n_vocab}
    try:
        if kind == "WordPiece":
            return models.WordPiece(
                known,
                unk_token=missing,
                max_input_chars_per_word=model.integer("max_input_chars_per_word", 100, most=10_000),
                continuing_subword_prefix=model.text("continuing_subword_prefix", "##"),
            )
        if kind == "Unigram":
            return _unigram(model, ids, tokenizer)
        names = ("continuing_subword_prefix", "end_of_word_suffix")
        affixes = {name: model.text(name) for name in names if model.get(name)}
        return models.BPE(
            known,
            _merges(model, ids, tokenizer.vocabulary.ids),
            unk_token=missing,
            **affixes,
            fuse_unk=model.flag("fuse_unk", False),
            byte_fallback=model.flag("byte_fallback", False),
            ignore_merges=model.flag("ignore_merges", False),
        )
    except ModelError:
        raise
    except Exception as error:
        raise model.error("vocab", f"tokenizers does not accept the vocabulary: {error}") from None


def _unigram(model: Fields, ids: Mapping[str, int], tokenizer: Tokenizer) -> models.Unigram:
    scores = {text: float(score) for text, score in model.list("vocab")}
    lowest = min(scores.values())
    names = {token: text for text, token in ids.items()}
    pairs: list[tuple[str, Any]] = [
        (names.get(token, f"{_NO_TOKEN}{token}"), scores.get(text, 0.0))
        for token, text in enumerate(tokenizer.vocabulary.tokens)
    ]
    pairs.append((f"{_NO_TOKEN}?", lowest))
    return models.Unigram(pairs, tokenizer.n_vocab, model.flag("byte_fallback", False))


def _merges(model: Fields, ids: Mapping[str, int], known: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges of plain tokens, in order; those of special tokens are left out."""
    prefix = model.text("continuing_subword_prefix", "")
    merges: list[tuple[str, str]] = []
    for rank, pair in enumerate(_pairs(model)):
        left, right = pair
        joined = left + right.removeprefix(prefix)
        if left in ids and right in ids and joined in ids:
            merges.append(pair)
        elif any(text not in known for text in (left, right, joined)):
            raise model.error("merges", f"merge {rank}, {left!r} and {right!r}, is not of tokens")
    return merges


def _pairs(model: Fields) -> Iterable[tuple[str, str]]:
    for rank, merge in enumerate(model.list("merges")):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(p and isinstance(p, str) for p in parts):
            raise model.error("merges", f"merge {rank} is {merge!r:.80}, not two tokens")
        yield parts[0], parts[1]
