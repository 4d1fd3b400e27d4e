"""Writes a model as a folder that ONNX runtimes load: the graph, its tokenizer and its configurations.

The folder appears whole or not at all: it is written under another name, and renamed at the end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from stretto.errors import InvalidRequest, Unsupported, wrong_value
from stretto.export.decoder import FORMS, PRECISIONS, Progress, build, check
from stretto.export.forms import GQA_HEAD_SIZES
from stretto.export.graph import DataFile
from stretto.models import read_spec
from stretto.models.rope import plain_frequencies
from stretto.models.spec import Attention, ModelSpec, Rope
from stretto.text.bpe import MERGES, BPETokenizer, read_merges
from stretto.text.loading import load_tokenizer
from stretto.text.pretokenizers import pretokenizer
from stretto.text.spm import SPACE, SPMTokenizer
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import TokenType, read_scores
from stretto.weights.gguf import GGUF
from stretto.weights.metadata import Metadata

# The documents beside the graph: configurations for transformers and genai, and the tokenizer.


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


MODEL = "model.onnx"
DATA = "model.onnx_data"
EXTERNAL_BYTES = 1_500_000_000  # models of more have their weights in a file of their own
LARGEST_MESSAGE = 2_000_000_000  # a little less than what a file in one piece can have
DEFAULT_CONTEXT = 32_768  # tables of rotary positions grow with it
BYTES_OF_A_WEIGHT = {"f32": 4.0, "f16": 2.0, "int8": 1.25, "int4": 1.25}


@dataclass(frozen=True)
class Exported:
    """A folder that was written."""

    path: Path
    form: str
    precision: str
    context: int
    nbytes: int
    files: tuple[str, ...]


def export_onnx(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    precision: str = "int8",
    form: str = "gqa",
    context: int | None = None,
    external_data: bool | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write the model of a GGUF file as an ONNX folder (stretto docs how-to/export).

    `context` is the longest text that the graph takes; the default is the model's own, 32,768 at most.
    `external_data` puts weights into a file beside the graph; the default is to do so from 1.5 GB on.

    >>> export_onnx("smollm2.gguf", "smollm2-onnx", precision="int4").files
    ('chat_template.jinja', 'config.json', 'genai_config.json', ...)
    """
    _check("precision", precision, PRECISIONS)
    _check("form", form, tuple(FORMS))
    target = Path(folder)
    if target.exists() and not replace:
        raise InvalidRequest(
            f"{target} exists; choose another folder, or replace it with --force (replace=True)",
            param="folder",
            value=str(target),
        )
    with GGUF(model) as file:
        whole = read_spec(file)
        length = _context(whole, context)
        spec = dataclasses.replace(whole.within(length), context_length=length)
        with _written(target) as made:
            check(spec)
            _write_texts(file, spec, made, precision, form)
            _write_model(file, spec, made, precision, form, external_data, progress)
            files = sorted(path.name for path in made.iterdir())
            nbytes = sum(path.stat().st_size for path in made.iterdir())
    return Exported(target, form, precision, length, nbytes, tuple(files))


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise wrong_value(name, value, f"one of {', '.join(map(repr, allowed))}")


def _context(spec: ModelSpec, context: int | None) -> int:
    if context is None:
        return min(spec.context_length, DEFAULT_CONTEXT)
    if not 1 <= context <= spec.context_length:
        raise wrong_value("context", context, f"from 1 to {spec.context_length}, the model's own")
    return context


@contextmanager
def _written(target: Path) -> Iterator[Path]:
    """An empty folder that becomes `target` if nothing goes wrong."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield made
        made.chmod(0o755)
        if target.exists():
            old = made.with_name(made.name + ".old")
            target.rename(old)
            made.rename(target)
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        else:
            made.rename(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _write_model(
    file: GGUF,
    spec: ModelSpec,
    folder: Path,
    precision: str,
    form: str,
    external_data: bool | None,
    progress: Progress | None,
) -> None:
    expected = _expected_bytes(spec, precision)
    external = expected > EXTERNAL_BYTES if external_data is None else external_data
    if not external and expected > LARGEST_MESSAGE:
        raise InvalidRequest(
            f"about {expected / 1e9:.1f} GB do not fit into one ONNX file; leave external_data to be chosen",
            param="external_data",
            value=external_data,
        )
    if external:
        with (folder / DATA).open("wb") as data:
            made = build(file, spec, precision, form, data=DataFile(data, DATA), progress=progress)
    else:
        made = build(file, spec, precision, form, progress=progress)
    onnx.save_model(made, str(folder / MODEL))


def _expected_bytes(spec: ModelSpec, precision: str) -> float:
    """About how much the weights take, and the tables of ropes."""
    weights = sum(map(prod, spec.tensors().values()))
    ropes = {layer.attention.rope for layer in spec.layers if layer.attention is not None}
    tables = sum(8 * spec.context_length * len(rope.frequencies) for rope in ropes if rope is not None)
    return weights * BYTES_OF_A_WEIGHT[precision] + tables


def _write_texts(file: GGUF, spec: ModelSpec, folder: Path, precision: str, form: str) -> None:
    """The tokenizer, the chat template and the configurations."""
    tokenizer = load_tokenizer(file.metadata)
    template = file.metadata.text("tokenizer.chat_template", "")
    _write_json(folder / "tokenizer.json", tokenizer_json(file.metadata, tokenizer))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(tokenizer, spec.context_length, template))
    _write_json(folder / "config.json", model_config(spec, tokenizer, precision))
    _write_json(folder / "generation_config.json", generation_config(tokenizer))
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    if form != "cells":
        shared = form == "gqa" and all(
            layer.attention is None or layer.attention.head_size % GQA_HEAD_SIZES == 0
            for layer in spec.layers
        )
        _write_json(folder / "genai_config.json", genai_config(spec, tokenizer, shared))


def _write_json(path: Path, document: Document) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
