"""A model's tokenizer as tokenizer.json, which the `tokenizers` library reads, and its configuration.

Special tokens are parsed in every text there, and BOS and EOS are added as the model asks: ids are those of
`Tokenizer.encode(text, special=True)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.errors import Unsupported
from stretto.text.bpe import MERGES, BPETokenizer, read_merges
from stretto.text.pretokenizers import pretokenizer
from stretto.text.spm import SPACE, SPMTokenizer
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import TokenType, read_scores
from stretto.weights.metadata import Metadata

Document = dict[str, Any]

_BYTE_LEVEL: Document = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}


def tokenizer_json(metadata: Metadata, tokenizer: Tokenizer) -> Document:
    """The document of a tokenizer; `Unsupported` for kinds that the library has no form for."""
    if isinstance(tokenizer, BPETokenizer):
        parts = _bpe(metadata, tokenizer)
    elif isinstance(tokenizer, SPMTokenizer):
        parts = _sentencepiece(metadata, tokenizer)
    else:
        raise Unsupported(
            f"tokenizers of kind {tokenizer.name!r} cannot be written as tokenizer.json; only BPE over bytes "
            "and SentencePiece can",
            param="model",
            value=tokenizer.name,
        )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokenizer),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": _post_processor(tokenizer),
        **parts,
    }


def tokenizer_config(tokenizer: Tokenizer, context: int, template: str) -> Document:
    """tokenizer_config.json: the special tokens by their texts, and the chat template."""
    vocabulary = tokenizer.vocabulary
    named = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "unk_token": vocabulary.unknown_id,
        "pad_token": tokenizer.eos_id,
    }
    config: Document = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": tokenizer.add_bos,
        "add_eos_token": tokenizer.add_eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        **{name: tokenizer.piece(token) for name, token in named.items() if token is not None},
    }
    return config | ({"chat_template": template} if template else {})


def _added_tokens(tokenizer: Tokenizer) -> list[Document]:
    """Tokens that are found before anything else: control tokens, and those a user has defined."""
    found = dict.fromkeys(tokenizer.specials.values(), True)
    found |= dict.fromkeys(tokenizer.vocabulary.of_type(TokenType.USER_DEFINED).values(), False)
    return [
        {
            "id": token,
            "content": tokenizer.piece(token),
            "single_word": False,
            "lstrip": False,
            "rstrip": token in tokenizer.strips_after,
            "normalized": False,
            "special": special,
        }
        for token, special in sorted(found.items())
    ]


def _post_processor(tokenizer: Tokenizer) -> Document | None:
    """BOS and EOS, where the model asks for them."""
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    eos = [tokenizer.eos_id] if tokenizer.add_eos and tokenizer.eos_id is not None else []
    if not bos and not eos:
        return None

    def special(token: int, text: int) -> Document:
        return {"SpecialToken": {"id": tokenizer.piece(token), "type_id": text}}

    def around(name: str, text: int) -> list[Document]:
        sequence: Document = {"Sequence": {"id": name, "type_id": text}}
        return [*(special(t, text) for t in bos), sequence, *(special(t, text) for t in eos)]

    pieces = {token: tokenizer.piece(token) for token in (*bos, *eos)}
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            piece: {"id": piece, "ids": [token], "tokens": [piece]} for token, piece in pieces.items()
        },
    }


def _model(tokenizer: Tokenizer, merges: list[tuple[str, str]], **changes: Any) -> Document:
    """The library's BPE. Special tokens are in its vocabulary, so that they keep their ids."""
    spaced = any(" " in text for pair in merges for text in pair)
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **changes,
        "vocab": tokenizer.vocabulary.ids,
        # As older versions read it, where that is unambiguous.
        "merges": [list(pair) for pair in merges] if spaced else [" ".join(pair) for pair in merges],
    }


def _bpe(metadata: Metadata, tokenizer: BPETokenizer) -> Document:
    words = pretokenizer(tokenizer.name)
    ids = {text: i for text, i in tokenizer.vocabulary.ids.items() if text not in tokenizer.specials}
    merges = read_merges(metadata.strings(MERGES), ids, tokenizer.vocabulary.ids)
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in words.patterns
    ]
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, _BYTE_LEVEL]},
        "decoder": _BYTE_LEVEL,
        "model": _model(tokenizer, merges, ignore_merges=words.ignore_merges),
    }


def _sentencepiece(metadata: Metadata, tokenizer: SPMTokenizer) -> Document:
    replace: Document = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back: Document = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    normalizer, decoders = replace, [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if tokenizer.space_prefix:
        prepend = {"type": "Prepend", "prepend": SPACE}
        normalizer = {"type": "Sequence", "normalizers": [prepend, replace]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = tokenizer.vocabulary.unknown_id
    has_bytes = bool(np.count_nonzero(tokenizer.vocabulary.types == TokenType.BYTE) == 256)
    return {
        "normalizer": normalizer,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _model(
            tokenizer,
            _merges_by_score(metadata, tokenizer),
            unk_token=None if unknown is None else tokenizer.piece(unknown),
            byte_fallback=has_bytes,
        ),
    }


def _merges_by_score(metadata: Metadata, tokenizer: SPMTokenizer) -> list[tuple[str, str]]:
    """The pairs that make up each token, in the order that SentencePiece merges them: by score."""
    vocabulary = tokenizer.vocabulary
    hidden = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED, TokenType.BYTE)
    plain = ~np.isin(vocabulary.types, hidden)
    ids = {text: token for text, token in vocabulary.ids.items() if plain[token]}
    scores = read_scores(metadata, tokenizer.n_vocab)
    order = sorted(ids.items(), key=lambda item: -scores[item[1]])
    merges: list[tuple[str, str]] = []
    for text, _ in order:
        pairs = [(text[:at], text[at:]) for at in range(1, len(text))]
        known = [
            (ids[left], ids[right], left, right) for left, right in pairs if left in ids and right in ids
        ]
        merges += [(left, right) for _, _, left, right in sorted(known)]
    return merges
