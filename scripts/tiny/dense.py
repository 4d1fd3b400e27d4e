"""Tiny models whose layers are attention and dense feed-forwards."""

from __future__ import annotations

from tiny import dense_biases, dense_llama, dense_norms, gemma3n
from tiny.base import Case

CASES: dict[str, Case] = dense_llama.CASES | dense_norms.CASES | dense_biases.CASES | gemma3n.CASES
