"""SentencePiece's own files (`tokenizer.model`), as the metadata of a GGUF file with the same vocabulary.

The file is a protobuf message: fields are a tag (number << 3 | wire type), then a varint, four or eight
bytes, or a length and bytes. It is walked here, with every length checked, and only what is needed is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import ModelError
from stretto.text.folder_config import TokenizerConfig
from stretto.text.tokenizer_json import MAX_TOKENS
from stretto.text.unigram import check_charsmap
from stretto.text.vocabulary import PREFIX, TokenType
from stretto.weights.json_file import read_bytes
from stretto.weights.metadata import Metadata, make_metadata

MAX_FILE_BYTES = 128 << 20
_UNIGRAM, _BPE = 1, 2
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the message


def read_sentencepiece(path: Path, config: TokenizerConfig) -> Metadata:
    """The vocabulary in a file, BPE or Unigram, as a GGUF file describes it."""
    data = memoryview(read_bytes(path, MAX_FILE_BYTES))
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in _fields(data):
            if number == _PIECE:
                piece = dict(_fields(value))
                tokens.append(str(piece.get(1, b""), "utf-8"))
                scores.append(struct.unpack("<f", piece.get(2, b"\0\0\0\0"))[0])
                types.append(piece.get(3, int(TokenType.NORMAL)))
                if len(tokens) > MAX_TOKENS:
                    raise ValueError(f"more than {MAX_TOKENS} pieces")
            elif number == _TRAINER:
                trainer = dict(_fields(value))
            elif number == _NORMALIZER:
                normalizer = dict(_fields(value))
    except (ValueError, TypeError, struct.error) as error:
        raise ModelError(f"is no SentencePiece model, or damaged: {error}", path=path) from None
    if not tokens:
        raise ModelError("is no SentencePiece model: it has no pieces", path=path)
    _add_tokens(tokens, scores, types, config)
    values = _normalizing(trainer.get(3, _UNIGRAM), normalizer, path)
    values |= {
        "tokens": tokens,
        "scores": np.array(scores, np.float32),
        "token_type": np.array(types, np.int64),
        "unknown_token_id": _index(types, TokenType.UNKNOWN),
        "bos_token_id": _special(tokens, config, "bos_token", trainer.get(41, 1)),
        "eos_token_id": _special(tokens, config, "eos_token", trainer.get(42, 2)),
        "add_bos_token": config.add_bos or (values["model"] == "llama" and not config.add_eos),
        "add_eos_token": config.add_eos or values["model"] == "t5",
    }
    return make_metadata({PREFIX + key: value for key, value in values.items() if value is not None}, path)


def _normalizing(kind: int, normalizer: dict[int, Any], path: Path) -> dict[str, Any]:
    """The kind of the vocabulary, and how a text is prepared for it."""
    charsmap = bytes(normalizer.get(2, b""))
    prefix, squeeze = bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1))
    if kind == _UNIGRAM:
        return {
            "model": "t5",
            "add_space_prefix": prefix,
            "remove_extra_whitespaces": squeeze,
            "precompiled_charsmap": np.frombuffer(check_charsmap(charsmap, "normalizer_spec"), np.uint8),
        }
    if kind != _BPE:
        raise ModelError(
            f"a SentencePiece model of type {kind}; Unigram (1) and BPE (2) are known", path=path
        )
    if charsmap or squeeze:
        raise ModelError(
            "a BPE vocabulary that normalises its text is read from tokenizer.json only; make that with "
            "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
            path=path,
        )
    return {"model": "llama", "add_space_prefix": prefix}


def _add_tokens(tokens: list[str], scores: list[float], types: list[int], config: TokenizerConfig) -> None:
    """Add the tokens that tokenizer_config.json lists beyond the file's, and mark special ones."""
    known = {text: token for token, text in enumerate(tokens)}
    for number, value in sorted(config.added.items(), key=lambda item: (len(item[0]), item[0])):
        text = value.get("content") if isinstance(value, dict) else None
        if not isinstance(text, str) or not number.isdecimal() or int(number[:9]) > MAX_TOKENS:
            continue
        token, special = known.get(text, int(number[:9])), value.get("special") is True
        while len(tokens) <= token:
            tokens.append("")
            scores.append(0.0)
            types.append(int(TokenType.UNUSED))
        tokens[token] = text
        if types[token] != TokenType.UNKNOWN:
            types[token] = int(TokenType.CONTROL if special else TokenType.USER_DEFINED)


def _index(types: list[int], wanted: TokenType) -> int | None:
    return next((token for token, kind in enumerate(types) if kind == wanted), None)


def _special(tokens: list[str], config: TokenizerConfig, role: str, default: int) -> int | None:
    text = config.roles.get(role)
    if text in tokens:
        return tokens.index(text)
    return default if isinstance(default, int) and 0 <= default < len(tokens) else None


def _fields(data: memoryview | bytes | int) -> Iterator[tuple[int, Any]]:
    """The fields of a message: number, and an integer or bytes."""
    if isinstance(data, int):
        raise ValueError("a number where a message should be")
    view, at, size = memoryview(data), 0, len(data)
    while at < size:
        tag, at = _varint(view, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield tag >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            if kind != 2:
                raise ValueError(f"wire type {kind} at byte {at}")
            length, at = _varint(view, at)
        if length > size - at:
            raise ValueError(f"{length} bytes are announced, {size - at} are left")
        yield tag >> 3, view[at : at + length]
        at += length


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise ValueError("cut off")
        number |= (view[at] & 0x7F) << shift
        at += 1
        if view[at - 1] < 0x80:
            return number, at
    raise ValueError("a number of more than 64 bits")
