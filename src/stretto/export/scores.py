"""Attention by standard operators: scores, a softmax over them, and the mixture of values."""

from __future__ import annotations

from stretto.export.graph import Graph
from stretto.models.mixers import Attention


def attend(graph: Graph, mixer: Attention, q: str, keys: str, values: str, bias: str) -> str:
    """Each query's mixture of values: float32[batch, n, n_head × size].

    q [batch, n, n_head × size], keys and values [batch, kv heads, cells, size], bias [batch, 1, 1, n, cells]:
    0 where a query sees a cell, and a very low number elsewhere.
    """
    kv, group, size = mixer.n_kv_head, mixer.n_head // mixer.n_kv_head, mixer.head_size
    q = graph.reshape(graph.scaled(q, mixer.scale), 0, 0, kv, group, size)
    q = graph.op("Transpose", [q], perm=[0, 2, 3, 1, 4])  # [batch, kv, group, n, size]
    keys = graph.op("Unsqueeze", [keys, graph.integers(2)])
    scores = graph.op("MatMul", [q, graph.op("Transpose", [keys], perm=[0, 1, 2, 4, 3])])
    scores = graph.op("Add", [graph.capped(scores, mixer.cap), bias])
    weights = graph.op("Softmax", [scores], axis=-1)
    mixed = graph.op("MatMul", [weights, graph.op("Unsqueeze", [values, graph.integers(2)])])
    mixed = graph.op("Transpose", [mixed], perm=[0, 3, 1, 2, 4])
    return graph.reshape(mixed, 0, 0, mixer.n_head * size)
