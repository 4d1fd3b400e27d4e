"""What readers of adapters have to know of a model."""

from __future__ import annotations

from stretto.models.spec import ModelSpec
from stretto.weights.adapters import Target


def target_of(spec: ModelSpec) -> Target:
    """The model that an adapter is to change."""
    return Target(spec.architecture, spec.tensors(), spec.head_size, spec.n_layer, spec.n_embd)
