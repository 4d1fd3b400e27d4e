"""The documents beside an exported model: configurations for transformers and genai, and the tokenizer."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import Unsupported
from stretto.models.rope import plain_frequencies
from stretto.models.spec import Attention, ModelSpec, Rope
from stretto.text.bpe import MERGES, BPETokenizer, read_merges
from stretto.text.pretokenizers import pretokenizer
from stretto.text.spm import SPACE, SPMTokenizer
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import TokenType, read_scores
from stretto.weights.metadata import Metadata

Document = dict[str, Any]

# Names of others, and what their documents always have:
#
# - `model_types`: transformers' names of architectures that are called otherwise in GGUF files; `classes`
# - `genai_types`: those that onnxruntime-genai knows by name; all others are a "decoder" to it, the same
# - `genai`: KleidiAI, on by default on ARM, is off there: it is less accurate (stretto docs how-to/export)
_DATA: Document = json.loads(Path(__file__).with_name("documents.json").read_bytes())


def model_type(spec: ModelSpec) -> str:
    """transformers' name of the architecture."""
    return str(_DATA["model_types"].get(spec.architecture, spec.architecture))


def model_config(spec: ModelSpec, tokenizer: Tokenizer, precision: str) -> Document:
    """config.json: sizes and kinds, by transformers' names. What the graph computes does not depend on it."""
    kind = model_type(spec)
    attention = _first_attention(spec)
    windows = [layer.attention.window if layer.attention else None for layer in spec.layers]
    ffn = next((layer.ffn for layer in spec.layers if layer.ffn is not None), None)
    config: Document = {
        "architectures": [f"{_DATA['classes'].get(kind, kind.capitalize())}ForCausalLM"],
        "model_type": kind,
        "vocab_size": spec.n_vocab,
        "hidden_size": spec.n_embd,
        "intermediate_size": spec.n_ff,
        "num_hidden_layers": spec.n_layer,
        "num_attention_heads": spec.n_head,
        "num_key_value_heads": spec.n_kv_head,
        "head_dim": spec.head_size,
        "hidden_act": _DATA["activations"]["silu" if ffn is None else ffn.activation],
        "max_position_embeddings": spec.context_length,
        "attention_bias": attention.bias,
        "tie_word_embeddings": spec.tied,
        "use_cache": True,
        "torch_dtype": "float16" if precision == "f16" else "float32",
        **_rope(spec),
        **special_ids(tokenizer),
    }
    if (norm := spec.output_norm) is not None:
        config["layer_norm_eps" if norm.kind == "layer" else "rms_norm_eps"] = norm.eps
    config["hidden_activation"] = config["hidden_act"]  # Gemma's name for it
    if any(windows):
        config["sliding_window"] = next(window for window in windows if window)
        config["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
    if attention.cap:
        config["attn_logit_softcapping"] = attention.cap
    if spec.logit_cap:
        config["final_logit_softcapping"] = spec.logit_cap
    return config


def special_ids(tokenizer: Tokenizer) -> Document:
    """Where texts begin and end."""
    ends = sorted(tokenizer.end_ids, key=lambda token: (token != tokenizer.eos_id, token))
    return {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": tokenizer.eos_id,
    }


def generation_config(tokenizer: Tokenizer) -> Document:
    """generation_config.json."""
    return {"_from_model_config": True, **special_ids(tokenizer)}


def genai_config(spec: ModelSpec, tokenizer: Tokenizer, shared: bool) -> Document:
    """genai_config.json; `shared`: past and present may be one buffer."""
    ids, kind = special_ids(tokenizer), model_type(spec)
    pad = ids["pad_token_id"]
    found: Document = deepcopy(_DATA["genai"])
    found["model"] |= {
        "type": kind if kind in _DATA["genai_types"] else "decoder",
        "bos_token_id": ids["bos_token_id"] if ids["bos_token_id"] is not None else pad or 0,
        "eos_token_id": ids["eos_token_id"] if ids["eos_token_id"] is not None else 0,
        "pad_token_id": pad or 0,
        "context_length": spec.context_length,
        "vocab_size": spec.n_vocab,
    }
    found["model"]["decoder"] |= {
        "head_size": spec.head_size,
        "hidden_size": spec.n_embd,
        "num_attention_heads": spec.n_head,
        "num_hidden_layers": spec.n_layer,
        "num_key_value_heads": spec.n_kv_head,
    }
    found["search"] |= {"max_length": spec.context_length, "past_present_share_buffer": shared}
    return found


def _first_attention(spec: ModelSpec) -> Attention:
    return next(layer.attention for layer in spec.layers if layer.attention is not None)


def _rope(spec: ModelSpec) -> Document:
    """The bases of unscaled ropes; nothing where a rope is scaled, as its parameters are not in the spec."""
    ropes: dict[bool, Rope] = {}
    for layer in spec.layers:
        if layer.attention is not None and layer.attention.rope is not None:
            ropes.setdefault(layer.attention.window is None, layer.attention.rope)
    bases = {full: base for full, rope in ropes.items() if (base := _base(rope)) is not None}
    if not ropes or len(bases) < len(ropes):
        return {}
    found: Document = {"rope_theta": bases.get(True, bases.get(False))}
    if len(set(bases.values())) == 2:
        found["rope_local_base_freq"] = bases[False]
    rotated = 2 * len(next(iter(ropes.values())).frequencies)
    if rotated < spec.head_size:
        found["partial_rotary_factor"] = rotated / spec.head_size
    return found


def _base(rope: Rope) -> float | None:
    """The base of an unscaled rope."""
    size = 2 * len(rope.frequencies)
    if size < 4 or rope.magnitude != 1.0:
        return None
    base = float(rope.frequencies[1] ** (-size / 2))
    base = round(base) if abs(base - round(base)) < 1e-6 * base else base
    return base if np.allclose(plain_frequencies(base, size), rope.frequencies, rtol=1e-5) else None


# A model's tokenizer as tokenizer.json, which the `tokenizers` library reads, and its configuration.
#
# Special tokens are parsed in every text there, and BOS and EOS are added as the model asks: ids are those of
# `Tokenizer.encode(text, special=True)`.


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
    own = {"added_tokens": _added_tokens(tokenizer), "post_processor": _post_processor(tokenizer)}
    return {**_DATA["tokenizer"], **own, **parts}


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
        **_DATA["bpe"],
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
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, _DATA["byte_level"]]},
        "decoder": _DATA["byte_level"],
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
