"""EmbeddingGemma: Gemma 3 that attends in both directions, with two matrices behind the mean of a text."""

from __future__ import annotations

from stretto.models import gemma3
from stretto.models.common import Keys, both_sides
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a gemma-embedding file."""
    return gemma3.read_layers(keys, both_sides(keys), causal=False)
