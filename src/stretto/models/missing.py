"""Files that are no language model of a supported architecture: what they are, and what to do instead.

`models.read_spec` asks here before it reads a file, and when it does not know the architecture.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from stretto.errors import ModelError, UnsupportedModel
from stretto.models.common import MAX_LAYERS, Keys
from stretto.models.spec import Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF

ARCHITECTURE = "general.architecture"

VOCABULARY = (
    "a vocabulary without weights; load the file of the whole model (stretto tokenize works with this one)"
)


def _by_name(names: dict[str, str]) -> dict[str, str]:
    """The description of each architecture; the file lists the architectures behind a description."""
    return {name: what for what, several in names.items() for name in several.split()}


_DATA = json.loads(Path(__file__).with_name("missing.json").read_bytes())
TYPES: dict[str, str] = _DATA["types"]  # `general.type` of files that are no model
OTHERS = _by_name(_DATA["others"])  # architectures of models that are no language models
# Language models that exist in llama.cpp's files and are not supported: what each would need.
NEEDS = _by_name(_DATA["needs"])


def refuse_others(file: GGUF) -> None:
    """Raise `ModelError` for a file that is no language model, saying what it is."""
    kind, name = file.metadata.get("general.type"), file.metadata.get(ARCHITECTURE)
    if isinstance(kind, str) and kind in TYPES:
        raise _error(file, TYPES[kind], "general.type")
    if "adapter.type" in file.metadata:  # adapters from before there was general.type
        raise _error(file, TYPES["adapter"], "adapter.type")
    if isinstance(name, str) and name in OTHERS:
        raise _error(file, f"{name!r} is {OTHERS[name]}", ARCHITECTURE, "")
    if not file.tensors and "tokenizer.ggml.tokens" in file.metadata:
        raise _error(file, VOCABULARY, "tensors")


def unknown_architecture(file: GGUF, name: str, supported: Iterable[str]) -> UnsupportedModel:
    """The error for an architecture that is not supported: what it would need, where that is known."""
    need = f" yet: it would need {NEEDS[name]}" if name in NEEDS else ""
    return UnsupportedModel(
        f"the architecture {name!r} is not supported{need}; supported are {', '.join(sorted(supported))}",
        path=file.path,
        field=ARCHITECTURE,
    )


def _error(file: GGUF, what: str, field: str, lead: str = "this is ") -> ModelError:
    return file.error(field, f"{lead}{what}")


# The spec of a model whose architecture Stretto does not know, for backends that read the file themselves.
#
# It has the sizes that the engine needs, and layers without parts: nothing of ours could run it.

EMBEDDINGS = "token_embd.weight"
EMPTY_LAYER = Layer(mixer=None, ffn=None, norm=None, ffn_norm=None)


def bare_spec(file: GGUF) -> ModelSpec:
    """The sizes of any language model that follows GGUF's names.

    >>> bare_spec(GGUF("gpt2.gguf")).n_layer
    12
    """
    refuse_others(file)
    keys = Keys(file, file.metadata.text(ARCHITECTURE))
    embeddings = file.tensors.get(EMBEDDINGS)
    if embeddings is None or len(embeddings.shape) != 2:
        raise file.error(EMBEDDINGS, "a language model has a matrix of embeddings")
    return ModelSpec(
        architecture=keys.arch,
        n_vocab=embeddings.shape[0],
        n_embd=keys.size("embedding_length"),
        context_length=keys.size("context_length"),
        layers=(EMPTY_LAYER,) * keys.size("block_count", most=MAX_LAYERS),
        output_norm=Norm("output_norm", 1e-5),
    )
