"""The spec of a model whose architecture Stretto does not know, for backends that read the file themselves.

It has the sizes that the engine needs, and layers without parts: nothing of ours could run it.
"""

from __future__ import annotations

from stretto.errors import ModelError
from stretto.models.common import MAX_LAYERS, Keys
from stretto.models.missing import ARCHITECTURE, refuse_others
from stretto.models.spec import Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF

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
        raise ModelError("a language model has a matrix of embeddings", path=file.path, field=EMBEDDINGS)
    return ModelSpec(
        architecture=keys.arch,
        n_vocab=embeddings.shape[0],
        n_embd=keys.size("embedding_length"),
        context_length=keys.size("context_length"),
        layers=(EMPTY_LAYER,) * keys.size("block_count", most=MAX_LAYERS),
        output_norm=Norm("output_norm", 1e-5),
    )
