"""Hugging Face folders as GGUF files, as llama.cpp's own converter writes them."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import InvalidRequest, ModelError
from stretto.quantize.imatrix import ImportanceMatrix
from stretto.quantize.model import Progress, Written, make_recipe, write_model
from stretto.text.folder_config import TokenizerConfig, read_tokenizer_config
from stretto.text.json_steps import Steps
from stretto.text.loading import (
    JSON_NAME,
    MAX_JSON_BYTES,
    SENTENCEPIECE_NAMES,
    load_tokenizer,
    load_tokenizer_folder,
)
from stretto.text.pretokenizers import PRETOKENIZERS, PreTokenizer
from stretto.text.sentencepiece_file import read_sentencepiece
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import PREFIX, TokenType
from stretto.weights.folder import Folder
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.json_file import Fields, read_object
from stretto.weights.metadata import make_metadata

# Texts that tell tokenizers apart: scripts, digits, spaces, line breaks, contractions, emoji.

PROBES: list[str] = json.loads(Path(__file__).with_name("probes.json").read_bytes())


# The tokenizer of a Hugging Face folder as a GGUF file describes it.
#
# A GGUF file says less of a tokenizer than tokenizer.json does, and a wrong description gives other tokens
# without any error. So what is made here is read back, and has to give the tokens of the folder's own
# tokenizer for texts in many scripts; a tokenizer that no description fits is refused.

Keys = dict[str, Any]
SPACE = "\u2581"
# One name of each kind of pre-tokenizer, the common ones first.
_NAMES = "llama-bpe qwen2 gpt-2 smollm gpt-4o qwen35 tekken deepseek-v3 glm4 deepseek-llm default"
_ROLES = {"pad_token": "padding_token_id", "mask_token": "mask_token_id"}
_BERT_ROLES = {"cls_token": "cls_token_id", "sep_token": "seperator_token_id"}  # spelled so in the format


def tokenizer_keys(folder: Path, n_vocab: int) -> Keys:
    """The keys of a folder's tokenizer, for a model with `n_vocab` rows of embeddings."""
    wanted, config = load_tokenizer_folder(folder), read_tokenizer_config(folder)
    if wanted.n_vocab > n_vocab:
        raise ModelError(
            f"{wanted.n_vocab} tokens, but embeddings for {n_vocab}", path=folder, field="tokenizer"
        )
    tried = 0
    for keys in _descriptions(folder, wanted, config):
        tried += 1
        if _is_same(keys, wanted, folder):
            return _finish(keys, wanted, config, n_vocab)
    raise ModelError(
        f"no tokenizer of a GGUF file gives the same tokens as this {wanted.kind} tokenizer ({tried} were "
        "tried); use the folder as it is",
        path=folder,
        field="tokenizer",
    )


def _descriptions(folder: Path, wanted: Tokenizer, config: TokenizerConfig) -> Iterator[Keys]:
    """Ways to describe the tokenizer, the likeliest first."""
    for name in SENTENCEPIECE_NAMES:
        if (folder / name).exists():
            made = read_sentencepiece(folder / name, config)
            keys = {key.removeprefix(PREFIX): made[key] for key in made}
            yield keys | _around(wanted)
    if not (folder / JSON_NAME).exists():
        return
    described = read_object(folder / JSON_NAME, MAX_JSON_BYTES)
    model, steps = described.object("model"), Steps(described)
    if wanted.kind == "wordpiece":
        yield from _wordpiece(wanted, model, steps)
    elif wanted.kind == "unigram":
        yield from _unigram(wanted, model, steps)
    elif steps.is_bytelevel:
        yield from _bytelevel(wanted, model)
    else:
        yield from _characters(wanted, model, steps)


def _plain(wanted: Tokenizer, kind: str) -> Keys:
    vocabulary = wanted.vocabulary
    return {
        "model": kind,
        "tokens": list(vocabulary.tokens),
        "token_type": vocabulary.types.astype(np.int32),
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
        "unknown_token_id": vocabulary.unknown_id,
        **_around(wanted),
    }


def _around(wanted: Tokenizer) -> Keys:
    return {"add_bos_token": wanted.add_bos, "add_eos_token": wanted.add_eos}


def _merges(model: Fields) -> list[str]:
    return [one if isinstance(one, str) else " ".join(one) for one in model.list("merges")]


def _bytelevel(wanted: Tokenizer, model: Fields) -> Iterator[Keys]:
    kinds: dict[PreTokenizer, str] = {}
    for name in (*_NAMES.split(), *PRETOKENIZERS):
        kinds.setdefault(PRETOKENIZERS[name], name)
    merges = _merges(model)
    for name in kinds.values():
        yield {**_plain(wanted, "gpt2"), "pre": name, "merges": merges}


def _characters(wanted: Tokenizer, model: Fields, steps: Steps) -> Iterator[Keys]:
    """BPE over characters: SentencePiece's, whose scores are the ranks of merges, or Gemma 4's."""
    scores = np.zeros(wanted.n_vocab, np.float32)
    merges = _merges(model)
    first: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        first.setdefault(merge.replace(" ", ""), rank)
    for token, text in enumerate(wanted.vocabulary.tokens):
        scores[token] = -float(first.get(text, len(merges)))
    yield {
        **_plain(wanted, "llama"),
        "pre": "default",
        "scores": scores,
        "add_space_prefix": steps.prefix != "never",
    }
    yield {**_plain(wanted, "gemma4"), "merges": merges}


def _wordpiece(wanted: Tokenizer, model: Fields, steps: Steps) -> Iterator[Keys]:
    mark = model.text("continuing_subword_prefix", "##")
    specials = wanted.specials

    def spelled(text: str) -> str:
        if text in specials or not text:
            return text
        return text.removeprefix(mark) if text.startswith(mark) else SPACE + text

    normalizer = next((step for step in steps.normalizer if step["type"] == "BertNormalizer"), {})
    lowercase = normalizer.get("lowercase") is True
    strip = normalizer.get("strip_accents")
    keys = _plain(wanted, "bert")
    keys["tokens"] = [spelled(text) for text in keys["tokens"]]
    keys["token_type_count"] = 2
    keys["normalizer.lowercase"] = lowercase
    keys["normalizer.strip_accents"] = lowercase if strip is None else strip is True
    yield keys


def _unigram(wanted: Tokenizer, model: Fields, steps: Steps) -> Iterator[Keys]:
    scores = {text: float(score) for text, score in model.list("vocab")}
    charsmap = next((s["precompiled_charsmap"] for s in steps.normalizer if s["type"] == "Precompiled"), "")
    keys = _plain(wanted, "t5")
    keys["scores"] = np.array([scores.get(text, 0.0) for text in wanted.vocabulary.tokens], np.float32)
    keys["precompiled_charsmap"] = np.frombuffer(base64.b64decode(charsmap or ""), np.uint8)
    keys["add_space_prefix"] = steps.prefix != "never"
    for squeeze in (True, False):
        yield {**keys, "remove_extra_whitespaces": squeeze}


def _is_same(keys: Keys, wanted: Tokenizer, folder: Path) -> bool:
    """Whether a tokenizer that is read from these keys gives the wanted tokens."""
    values = {PREFIX + key: value for key, value in keys.items() if value is not None}
    try:
        made = load_tokenizer(make_metadata(values, folder))
        return all(_encode(made, text) == _encode(wanted, text) for text in _probes(folder))
    except ModelError:
        return False


def _probes(folder: Path) -> list[str]:
    """The texts to compare by.

    Some tokenizers put a space in front of a text unless it begins with one. GGUF files cannot say so, and
    llama.cpp always does.
    """
    if (folder / JSON_NAME).exists():
        steps = Steps(read_object(folder / JSON_NAME, MAX_JSON_BYTES))
        if any(step["type"] == "Metaspace" for step in steps.pre_tokenizer) and not steps.normalizer:
            return [text for text in PROBES if not text.startswith(" ")]
    return PROBES


def _encode(tokenizer: Tokenizer, text: str) -> list[int] | None:
    try:
        return tokenizer.encode(text, special=True)
    except InvalidRequest:  # characters that the vocabulary lacks
        return None


def _finish(keys: Keys, wanted: Tokenizer, config: TokenizerConfig, n_vocab: int) -> Keys:
    """With tokens for all embeddings, other special tokens, and the chat template."""
    tokens, missing = list(keys["tokens"]), n_vocab - len(keys["tokens"])
    types = np.asarray(keys["token_type"], np.int32)
    if missing > 0:
        taken = set(tokens)
        extra = (f"[PAD{index}]" for index in range(len(tokens), n_vocab))
        tokens += [text if text not in taken else f"[PAD {text}]" for text in extra]
        types = np.concatenate([types, np.full(missing, TokenType.UNUSED, np.int32)])
        if "scores" in keys:
            keys["scores"] = np.concatenate([keys["scores"], np.full(missing, -1e4, np.float32)])
    keys |= {"tokens": _filled(tokens), "token_type": types}
    roles = {**_ROLES, **(_BERT_ROLES if wanted.kind == "wordpiece" else {})}
    for role, key in roles.items():
        token = config.find_id(wanted.vocabulary.ids, role)
        if token is not None:
            keys[key] = token
    found = {PREFIX + key: value for key, value in keys.items() if value is not None}
    if config.template:
        found["tokenizer.chat_template"] = config.template
    if config.template_with_tools:
        found["tokenizer.chat_template.tool_use"] = config.template_with_tools
    return found


def _filled(tokens: list[str]) -> list[str]:
    """Tokens without empty texts, which llama.cpp takes for damage."""
    return [text or f"[UNUSED{index}]" for index, text in enumerate(tokens)]


def convert_folder(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    mix: str | None = None,
    *,
    imatrix: str | os.PathLike[str] | ImportanceMatrix | None = None,
    tensor_types: Sequence[tuple[str, str]] = (),
    pure: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write a Hugging Face folder as a GGUF file with the formats of a mix; by itself bf16 or f16, as it is.

    >>> convert_folder("Qwen3-0.6B", "qwen3-0.6b-q4_k_m.gguf", "q4_k_m")
    """
    path = Path(source).expanduser()
    if not path.is_dir():
        raise InvalidRequest(
            f"{path} is no folder; stretto quantize is for GGUF files",
            param="source",
            value=str(path),
        )
    with Folder(path) as file:
        recipe = make_recipe(mix or _own_mix(file), imatrix, tensor_types, pure, threads, progress)
        # Nothing in a folder is quantised, but what its authors did.
        recipe = replace(recipe, allow_requantize=True, plain_as_float32=True)
        return write_model(file, target, recipe, _metadata(file, path))


def _own_mix(file: GGUF) -> str:
    """The format of a folder's largest tensor, if files have it: else f16."""
    largest = max(file.tensors.values(), key=lambda tensor: tensor.nbytes)
    return "bf16" if largest.format is Format.BF16 else "f16"


def _metadata(file: GGUF, path: Path) -> dict[str, Any]:
    """The folder's metadata in the types that llama.cpp reads, with its tokenizer."""
    if "token_embd.weight" not in file.tensors:
        raise ModelError("has no embeddings", path=path, field="tensor 'token_embd.weight'")
    values = {key: _narrow(value) for key, value in file.metadata.items()}
    values["general.type"] = "model"
    return values | tokenizer_keys(path, file.tensors["token_embd.weight"].shape[0])


def _narrow(value: Any) -> Any:
    """Arrays of 64 bits with 32."""
    if isinstance(value, np.ndarray) and value.dtype == np.int64:
        return value.astype(np.int32)
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value
