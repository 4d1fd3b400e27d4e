"""The steps of sampling, each a plain function from a row of logits to a row of logits.

A token that a step excludes gets −inf. Ties are broken towards the lower token id, everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]  # float32[n_vocab]


def penalize(
    logits: Row, tokens: Sequence[int], n_prompt: int, repetition: float, presence: float, frequency: float
) -> Row:
    """Lower the logits of tokens that occurred before, whatever their sign.

    `repetition` counts all `tokens`, `presence` and `frequency` those from `n_prompt` on.
    """
    logits = logits.copy()
    if repetition != 1.0 and len(tokens):
        used = np.unique(np.asarray(tokens))
        row = logits[used]
        logits[used] = np.where(row > 0, row / np.float32(repetition), row * np.float32(repetition))
    generated = np.asarray(tokens[n_prompt:], np.int64)
    if len(generated) and (presence or frequency):
        used, counts = np.unique(generated, return_counts=True)
        logits[used] -= (presence + frequency * counts).astype(np.float32)
    return logits


def add_bias(logits: Row, bias: Mapping[int, float]) -> Row:
    """Add to the logits of single tokens."""
    logits = logits.copy()
    for token, value in bias.items():
        logits[token] += np.float32(value)
    return logits


def temper(logits: Row, temperature: float) -> Row:
    """Divide by the temperature: below 1 sharper, above 1 flatter."""
    return logits / np.float32(temperature)


def keep_top_k(logits: Row, k: int) -> Row:
    """Keep the k largest."""
    if k >= len(logits):
        return logits
    threshold = np.partition(logits, -k)[-k]
    keep = logits > threshold
    keep[np.flatnonzero(logits == threshold)[: k - np.count_nonzero(keep)]] = True
    return _only(logits, keep)


def keep_top_p(logits: Row, p: float) -> Row:
    """Keep the smallest set of most probable tokens whose probabilities sum to at least p."""
    candidates = np.flatnonzero(logits > -np.inf)
    probabilities = softmax(logits[candidates])
    order = np.argsort(-probabilities, kind="stable")
    cumulative = np.cumsum(probabilities[order])
    n = int(np.searchsorted(cumulative, p * cumulative[-1], side="left")) + 1
    keep = np.zeros(len(logits), bool)
    keep[candidates[order[:n]]] = True
    return _only(logits, keep)


def keep_min_p(logits: Row, p: float) -> Row:
    """Keep tokens at least p times as probable as the most probable one."""
    return _only(logits, logits >= logits.max() + np.float32(np.log(p)))


def softmax(logits: Row) -> NDArray[np.float64]:
    """Probabilities, in float64."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


def log_softmax(logits: Row) -> NDArray[np.float64]:
    """Log-probabilities, in float64."""
    shifted = logits.astype(np.float64) - logits.max()
    logs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return logs


def log_probabilities(logits: Row, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Those of some tokens: the numbers that `log_softmax` has for them, without its others."""
    shifted = logits.astype(np.float64) - logits.max()
    wanted: NDArray[np.float64] = shifted[list(tokens)]
    wanted -= np.log(np.exp(shifted, out=shifted).sum())
    return wanted


def draw(logits: Row, uniform: float) -> int:
    """The token at `uniform` (from 0 up to 1) on the line of cumulated probabilities, in order of id."""
    candidates = np.flatnonzero(logits > -np.inf)
    cumulative = np.cumsum(np.exp(logits[candidates].astype(np.float64) - logits.max()))
    index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return int(candidates[min(index, len(candidates) - 1)])


def _only(logits: Row, keep: NDArray[np.bool_]) -> Row:
    return np.where(keep, logits, np.float32(-np.inf))


# Log-probabilities of a token and of the best ones beside it, on the host.

Mask = NDArray[np.uint32]


def measure(row: Row, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
    """Log-probability of a token in a row's distribution, and those of the `n_top` best with their ids."""
    logs = log_softmax(row)
    n = min(n_top, len(logs))
    if not n:
        return float(logs[token]), []
    best = np.argpartition(-logs, n - 1)[:n]
    best = best[np.lexsort((best, -logs[best]))]
    return float(logs[token]), [(int(i), float(logs[i])) for i in best if logs[i] > -np.inf]


def measure_given(row: Row, tokens: Iterable[int]) -> list[tuple[int, float]]:
    """Log-probabilities of certain tokens, with their ids."""
    logs = log_softmax(row)
    return [(token, float(logs[token])) for token in tokens]


def allow(row: Row, mask: Mask) -> Row:
    """A copy of a row in which tokens without a bit in the mask, uint32[n_vocab / 32], have −inf."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return np.where(bits[: len(row)] != 0, row, np.float32(-np.inf)).astype(np.float32, copy=False)
