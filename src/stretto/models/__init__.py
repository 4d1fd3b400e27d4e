"""Architectures as data: each file here reads a model file's metadata and returns a `ModelSpec`."""

from __future__ import annotations

from collections.abc import Callable

from stretto.errors import ModelError
from stretto.models import gemma3, llama, qwen2, qwen3, smollm3
from stretto.models.spec import Layer, ModelSpec, Rope
from stretto.weights.gguf import GGUF

__all__ = ["ARCHITECTURES", "Layer", "ModelSpec", "Rope", "read_spec"]

ARCHITECTURES: dict[str, Callable[[GGUF], ModelSpec]] = {
    "gemma3": gemma3.read,
    "llama": llama.read,
    "qwen2": qwen2.read,
    "qwen3": qwen3.read,
    "smollm3": smollm3.read,
}

# Tensors of a layer that repeat metadata; some old files have them.
DERIVED = ("rope_freqs.weight", "attn_rot_embd.weight")


def read_spec(file: GGUF) -> ModelSpec:
    """The spec of the model in `file`, once all its tensors are known to be there and to fit.

    >>> read_spec(GGUF("smollm2.gguf")).architecture
    'llama'
    """
    name = file.metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        raise ModelError(
            f"the architecture {name!r} is not supported; supported are {', '.join(sorted(ARCHITECTURES))}",
            path=file.path,
            field="general.architecture",
        )
    spec = ARCHITECTURES[name](file)
    needed = spec.tensors()
    for tensor, shape in needed.items():
        if tensor not in file.tensors:
            raise ModelError("the tensor is missing; is the file complete?", path=file.path, field=tensor)
        given = file.tensors[tensor].shape
        if given != shape:
            raise ModelError(f"the shape is {given}, not {shape}", path=file.path, field=f"tensor {tensor!r}")
    for tensor in file.tensors.keys() - needed.keys():
        if tensor.startswith(("blk.", "output")) and not tensor.endswith(DERIVED):
            raise ModelError(
                f"the tensor has no place in a {name} model of {spec.n_layer} layers",
                path=file.path,
                field=tensor,
            )
    return spec
