"""Whether a model can run here, by its head alone: asked before its weights are fetched.

    check_head(path, memory=16 << 30)      # raises `ModelError` with the reason

The architecture has to be known, its tensors complete and in formats that a backend reads, the vocabulary
readable, and the weights have to fit into memory.
"""

from __future__ import annotations

from pathlib import Path

from stretto.backends.registry import BackendOptions, serving
from stretto.errors import ModelError, UnsupportedModel
from stretto.models import read_spec
from stretto.models.bare import bare_spec
from stretto.models.missing import TYPES
from stretto.models.summary import model_memory
from stretto.routing.candidates import gguf_candidates, with_remedy
from stretto.text.loading import load_tokenizer_of
from stretto.weights.folder import open_weights
from stretto.weights.gguf import GGUF

LEAST_CELLS = 512  # of a KV cache that is worth having


def check_head(path: Path, memory: int | None = None) -> None:
    """Raise `ModelError` unless the model can run in `memory` bytes; None: as large as it may be.

    Image encoders, adapters and importance matrices belong to other models and pass.
    """
    with open_weights(path) as file:
        if _is_part(file):
            return
        problem = None
        try:
            spec = read_spec(file)
        except UnsupportedModel as error:
            spec, problem = bare_spec(file), error
        candidates = gguf_candidates(file, spec, problem, serving(), BackendOptions("cpu", 1, 1))
        if all(each.refusal for each in candidates):
            if problem is not None:
                raise with_remedy(problem, candidates) from problem
            raise ModelError(candidates[0].refusal, path=path)
        if problem is None:  # else another program reads the vocabulary
            load_tokenizer_of(file)
        need = model_memory(file, spec)
        _check_memory(path, need.packed_bytes, need.cache_bytes("f16", LEAST_CELLS) or 0, memory)


def _is_part(file: GGUF) -> bool:
    """Whether a file is no model by itself, but belongs to one."""
    metadata = file.metadata
    return (
        metadata.get("general.type") in tuple(TYPES)
        or metadata.get("general.architecture") == "clip"
        or "adapter.type" in metadata
    )


def _check_memory(path: Path, weights: int, cache: int, memory: int | None) -> None:
    if memory is not None and weights + cache > memory:
        raise ModelError(
            f"its weights take {weights / 1e9:,.1f} GB and a KV cache of {LEAST_CELLS} cells "
            f"{cache / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f} GB: it would run from the "
            "disk, slowly. Take a smaller file of it, or fetch it all the same with stretto pull --oversize",
            path=path,
        )
