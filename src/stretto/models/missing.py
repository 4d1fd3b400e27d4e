"""Files that are no language model of a supported architecture: what they are, and what to do instead.

`models.read_spec` asks here before it reads a file, and when it does not know the architecture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
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


# What a refused file has that nothing here computes, by its tensors.

KNOWN_PARTS = frozenset(_DATA["parts"].split())  # of the names of layers' tensors, that some architecture has
OPERATIONS = {pattern: what for what, several in _DATA["operations"].items() for pattern in several.split()}
UNLIKE = _by_name(_DATA["unlike"])  # models that llama.cpp runs with programs of their own only
_PART = re.compile(r"(enc\.|dec\.)?blk\.(\d{1,9})\.(.+?)(?:\.\d+)?(?:\.(?:weight|bias|scale))?")


@dataclass(frozen=True)
class Lack:
    """An operation that is missing, the layers that have it, and those of their tensors that tell."""

    operation: str
    layers: tuple[int, ...]
    tensors: tuple[str, ...]

    def __str__(self) -> str:
        layers = f"layers {_ranges(self.layers)}" if len(self.layers) > 1 else f"layer {self.layers[0]}"
        return f"{layers}: {self.operation} ({', '.join(self.tensors)})"


def list_lacks(file: GGUF) -> list[Lack]:
    """The operations of a file's layers that no supported architecture has, as far as its tensors show them.

    Empty where only a reader of the metadata is missing, or a number in it.
    """
    found: dict[str, tuple[set[int], set[str]]] = {}
    for name in file.tensors:
        match = _PART.fullmatch(name)
        if match is None:
            continue
        stack, layer, part = match.groups()
        if stack:
            operation, part = "an encoder beside the decoder", f"{stack}blk"
        elif part in KNOWN_PARTS or part.split(".")[0] in KNOWN_PARTS:
            continue
        else:
            fits = (what for pattern, what in OPERATIONS.items() if re.fullmatch(pattern, part))
            operation = next(fits, "tensors that no supported architecture has")
        layers, parts = found.setdefault(operation, (set(), set()))
        layers.add(int(layer))
        parts.add(part)
    return [Lack(what, tuple(sorted(at)), tuple(sorted(parts))) for what, (at, parts) in found.items()]


def _ranges(numbers: tuple[int, ...]) -> str:
    """Sorted numbers with their runs joined.

    >>> _ranges((0, 1, 2, 5))
    '0 to 2, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)


def beyond_llama_cpp(file: GGUF) -> str:
    """Why llama.cpp would not run a refused file either; "" if it would, by what it had in 2026."""
    name = file.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name in OTHERS or not file.tensors:
        return "it is no language model"
    if name in UNLIKE:
        return UNLIKE[name]
    return "" if name in NEEDS else f"llama.cpp has no architecture {name!r} that this version knows of"


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
