"""Metadata that the architectures share."""

from __future__ import annotations

from typing import Any

from stretto.errors import ModelError
from stretto.models.spec import Layer, ModelSpec, Rope
from stretto.weights.gguf import GGUF

# Far above any model; a damaged count should not cost memory.
MAX_LAYERS = 1024
MAX_HEAD_SIZE = 1 << 16


def positive(file: GGUF, key: str, default: int | None = None, most: int = 1 << 31) -> int:
    """The integer at `key`, which must be from 1 to `most`."""
    value = file.metadata.integer(key, default)
    if not 1 <= value <= most:
        raise ModelError(f"{value}, but 1 to {most} is possible", path=file.path, field=key)
    return value


def head_size(file: GGUF, arch: str) -> int:
    """The size of a head: as given, or the embedding divided among the heads."""
    heads = positive(file, f"{arch}.attention.head_count")
    share = positive(file, f"{arch}.embedding_length") // heads or 1
    size = positive(file, f"{arch}.attention.key_length", share, most=MAX_HEAD_SIZE)
    if positive(file, f"{arch}.attention.value_length", size) != size:
        raise ModelError(
            "keys and values of different sizes are not supported",
            path=file.path,
            field=f"{arch}.attention.value_length",
        )
    return size


def refuse(file: GGUF, key: str, what: str, harmless: float = 0.0) -> None:
    """Raise for a part of a model that would be ignored otherwise: `key` with a value that matters."""
    value = file.metadata.number(key, harmless)
    if value != harmless:
        raise ModelError(f"{what} ({value:g}) is not supported", path=file.path, field=key)


def decoder(
    file: GGUF, arch: str, rope: Rope, layers: tuple[Layer, ...] | None = None, **pieces: Any
) -> ModelSpec:
    """A spec from the keys that every architecture has; `pieces` are the fields that differ."""
    refuse(file, f"{arch}.expert_count", "a mixture of experts")
    refuse(file, f"{arch}.attn_logit_softcapping", "a cap on attention scores")
    refuse(file, f"{arch}.final_logit_softcapping", "a cap on logits")
    size = head_size(file, arch)
    n_head = positive(file, f"{arch}.attention.head_count")
    n_kv_head = positive(file, f"{arch}.attention.head_count_kv", n_head)
    if n_head % n_kv_head:
        raise ModelError(
            f"{n_head} heads cannot share {n_kv_head} K/V heads evenly",
            path=file.path,
            field=f"{arch}.attention.head_count_kv",
        )
    n_layer = positive(file, f"{arch}.block_count", most=MAX_LAYERS)
    eps = file.metadata.number(f"{arch}.attention.layer_norm_rms_epsilon")
    if not 0.0 <= eps < 1.0:
        key = f"{arch}.attention.layer_norm_rms_epsilon"
        raise ModelError(f"an epsilon of {eps}", path=file.path, field=key)
    if "token_embd.weight" not in file.tensors:
        raise ModelError(
            "the tensor is missing; is this a language model?", path=file.path, field="token_embd.weight"
        )
    fields: dict[str, Any] = {
        "architecture": arch,
        "n_vocab": file.tensors["token_embd.weight"].shape[0],
        "n_embd": positive(file, f"{arch}.embedding_length"),
        "n_ff": positive(file, f"{arch}.feed_forward_length"),
        "n_head": n_head,
        "n_kv_head": n_kv_head,
        "head_size": size,
        "context_length": positive(file, f"{arch}.context_length"),
        "layers": layers or (Layer(rope),) * n_layer,
        "norm_eps": eps,
        "attention_scale": size**-0.5,
        "tied": "output.weight" not in file.tensors,
    }
    return ModelSpec(**(fields | pieces))
