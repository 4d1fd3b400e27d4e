"""EAGLE-3 heads: a layer that drafts for another model, whose hidden states it reads, in a file of its own.

The matrix `fc` makes one state of what several layers of the model pass on for a token. Of that state and the
embedding of the next token, each normalised by itself, attention reads both, one behind the other; its
residual is the state alone. The head may have fewer tokens than the model: `d2t` names the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.models import common
from stretto.models.common import Keys
from stretto.models.parts import Head, Norm, Projection
from stretto.models.sites import Site, list_sites
from stretto.models.spec import Layer, ModelSpec
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor

ARCHITECTURE = "eagle3"
FUSE = "fc"
MAX_SITES = 16  # layers of the model that a head reads
OUTPUT, EMBEDDINGS, IDS = "output.weight", "token_embd.weight", "d2t"
EMBEDDING_NORM, STATE_NORM = "blk.0.attn_norm", "attn_norm_2"
BESIDE = frozenset({OUTPUT, EMBEDDINGS, IDS, "t2d", f"{EMBEDDING_NORM}.weight", f"blk.0.{STATE_NORM}.weight"})
BESIDE |= {"rope_freqs.weight", "blk.0.rope_freqs.weight"}


@dataclass(frozen=True)
class EagleHead:
    """An EAGLE-3 head: its layer as a model of its own, and what it takes of the model that it drafts for."""

    spec: ModelSpec
    tensors: Mapping[str, Tensor]  # of that model
    embeddings: Tensor
    embedding_norm: Tensor
    state_norm: Tensor | None  # of states before they are the residual; None: it is within the layer
    sites: tuple[Site, ...]  # of the model that it drafts for
    ids: NDArray[np.int64] | None  # the model's token for each of the head's; None: they are the same


def read_eagle_head(file: GGUF, model: GGUF, spec: ModelSpec) -> EagleHead:
    """The head in a file, for a model; `ModelError` if it is none, or does not fit the model."""
    name = file.metadata.text("general.architecture")
    if name != ARCHITECTURE:
        raise file.error(
            "general.architecture",
            f"{name!r} is no EAGLE-3 head; a model of its own drafts as "
            "draft=stretto.DraftModel(stretto.load(path))",
        )
    keys = Keys(file, name)
    if keys.n_layer != 1:
        raise keys.error("block_count", f"{keys.n_layer} layers; heads have one")
    n, width = keys.n_embd, keys.size("target_hidden_size", spec.n_embd)
    if width != spec.n_embd:
        raise keys.error(
            "target_hidden_size", f"it is for a model of width {width}, and this one has {spec.n_embd}"
        )
    sites, ids = _read_sites(keys, spec), _read_ids(file, spec)
    n_vocab = spec.n_vocab if ids is None else len(ids)
    normed_before = keys.flag("norm_before_residual", False)
    norms = common.qk_norms(keys.eps) if keys.has("blk.0.attn_q_norm.weight") else {}
    attention = common.attention(keys, "adjacent", **common.attention_biases(keys), **norms)
    layer = Layer(
        replace(attention, joined=n),
        common.dense(keys),
        None if normed_before else Norm(STATE_NORM, keys.eps),
        Norm("ffn_norm", keys.eps),
    )
    alone = ModelSpec(
        architecture=name,
        n_vocab=n_vocab,
        n_embd=n,
        context_length=keys.size("context_length", spec.context_length),
        layers=(layer,),
        output_norm=Norm("output_norm", keys.eps),
        embedder=Head("mean", (Projection(FUSE, n, len(sites) * width),)),
    ).within(spec.context_length)
    output = EMBEDDINGS if spec.tied else OUTPUT
    tensors = {
        name: _own_or_models(file, model, OUTPUT, output, shape)
        if name == EMBEDDINGS
        else _own(file, name, shape)
        for name, shape in alone.tensors().items()
    }
    for name in file.tensors.keys() - alone.tensors().keys() - BESIDE:
        raise file.error(f"tensor {name!r}", "the tensor has no place in an EAGLE-3 head")
    return EagleHead(
        alone,
        tensors,
        _own_or_models(file, model, EMBEDDINGS, EMBEDDINGS, (spec.n_vocab, n)),
        _own(file, f"{EMBEDDING_NORM}.weight", (n,)),
        _own(file, f"blk.0.{STATE_NORM}.weight", (n,)) if normed_before else None,
        sites,
        ids,
    )


def _read_sites(keys: Keys, spec: ModelSpec) -> tuple[Site, ...]:
    """Where the model's states are: `extract_layers` are those that begin with them; 0 is the first."""
    known, numbers = list_sites(spec), [2, spec.n_layer // 2, spec.n_layer - 3]  # those of EAGLE
    if "extract_layers" in keys:
        numbers = keys.file.metadata.array(keys.key("extract_layers")).tolist()
    if not 1 <= len(numbers) <= MAX_SITES:
        raise keys.error("extract_layers", f"{len(numbers)} layers; 1 to {MAX_SITES} are possible")
    sites: list[Site] = []
    for number in numbers:
        if type(number) is not int or not 0 <= number <= spec.n_layer:
            raise keys.error("extract_layers", f"{number!r}, and the model has {spec.n_layer} layers")
        site = known.get(f"layers.{number - 1}.residual" if number else "embedding")
        if site is None:
            raise keys.error("extract_layers", "the model's layers have no single residual to read")
        sites.append(site)
    return tuple(sites)


def _read_ids(file: GGUF, spec: ModelSpec) -> NDArray[np.int64] | None:
    """The model's tokens that the head knows, if it does not know all."""
    if IDS not in file.tensors:
        return None
    tensor = file.tensors[IDS]
    dtype = {Format.I64: "<i8", Format.I32: "<i4"}.get(tensor.format)
    if dtype is None or len(tensor.shape) != 1:
        raise file.error(
            f"tensor {IDS!r}", f"{tensor.format.name} of shape {tensor.shape}; a list of integers"
        )
    ids = np.frombuffer(np.ascontiguousarray(tensor.data), dtype).astype(np.int64)
    if not len(ids) or ids.min() < 0 or ids.max() >= spec.n_vocab:
        raise file.error(f"tensor {IDS!r}", f"names tokens beyond the model's {spec.n_vocab}")
    return ids


def _own(file: GGUF, name: str, shape: tuple[int, ...]) -> Tensor:
    if name not in file.tensors:
        raise file.error(f"tensor {name!r}", "it is missing; an EAGLE-3 head has it")
    if file.tensors[name].shape != shape:
        raise file.error(f"tensor {name!r}", f"the shape is {file.tensors[name].shape}, not {shape}")
    return file.tensors[name]


def _own_or_models(file: GGUF, model: GGUF, name: str, of_model: str, shape: tuple[int, ...]) -> Tensor:
    """A matrix of the head's, or the model's where the head has none and that one fits."""
    if name in file.tensors:
        return _own(file, name, shape)
    if model.tensors[of_model].shape != shape:
        raise ModelError(
            f"the head has none of its own, and the model's has the shape {model.tensors[of_model].shape}, "
            f"not {shape}; is the head for this model?",
            path=file.path,
            field=f"tensor {name!r}",
        )
    return model.tensors[of_model]
