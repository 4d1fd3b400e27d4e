"""What the architectures' metadata have in common."""

from __future__ import annotations

from typing import Any

from stretto.errors import ModelError
from stretto.models.spec import Layer, ModelSpec, Rope
from stretto.weights.gguf import GGUF

MAX_LAYERS = 1024  # far above any model; a damaged count should not cost memory


def positive(file: GGUF, key: str, default: int | None = None, most: int = 1 << 31) -> int:
    """The integer at `key`, which must be from 1 to `most`."""
    value = file.metadata.integer(key, default)
    if not 1 <= value <= most:
        raise ModelError(f"{value}, but 1 to {most} is possible", path=file.path, field=key)
    return value


def head_size(file: GGUF, arch: str) -> int:
    """The size of a head: as given, or the embedding divided among the heads."""
    heads = positive(file, f"{arch}.attention.head_count")
    size = positive(
        file, f"{arch}.attention.key_length", positive(file, f"{arch}.embedding_length") // heads or 1
    )
    if positive(file, f"{arch}.attention.value_length", size) != size:
        raise ModelError(
            "keys and values of different sizes are not supported",
            path=file.path,
            field=f"{arch}.attention.value_length",
        )
    return size


def refuse_experts(file: GGUF, arch: str) -> None:
    """Mixtures of experts share an architecture's name and little else."""
    key = f"{arch}.expert_count"
    if file.metadata.integer(key, 0):
        raise ModelError(
            "mixtures of experts are not supported; use a dense model", path=file.path, field=key
        )


def decoder(
    file: GGUF, arch: str, rope: Rope, layers: tuple[Layer, ...] | None = None, **pieces: Any
) -> ModelSpec:
    """A spec from the keys that every architecture has; `pieces` are the fields that differ."""
    refuse_experts(file, arch)
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
