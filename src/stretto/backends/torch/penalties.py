"""Penalties and bias of a row as changes of single logits, which the device applies (kernels/adjust.py).

Histories are counted as they grow: a list of tokens that only got longer since the last step is not counted
again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import bias_arrays

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

MAX_HISTORIES = 512


@dataclass(frozen=True)
class Entries:
    """Tokens of one row, each once, and what changes their logits: the order of the native sampler."""

    tokens: Ints
    repetition: Floats  # 1: none
    minus: Floats
    plus: Floats

    def words(self, address: int) -> Ints:
        """int32[n, 5] for a row at an address: that of the logit (two words), the bits of the numbers."""
        found = np.empty((len(self.tokens), 5), np.int32)
        found[:, :2] = (address + 4 * self.tokens.astype(np.int64)).view(np.int32).reshape(-1, 2)
        for at, numbers in enumerate((self.repetition, self.minus, self.plus), 2):
            found[:, at] = numbers.view(np.int32)
        return found


class _History:
    """The different tokens of a text in order of their first use, and how often each was generated."""

    def __init__(self, n_prompt: int) -> None:
        self.n_prompt = n_prompt
        self.seen: list[int] = []
        self.places: dict[int, int] = {}
        self._tokens = np.empty(64, np.int32)
        self._counts = np.zeros(64, np.float64)

    @property
    def tokens(self) -> Ints:
        """int32[n], each once."""
        return self._tokens[: len(self.places)]

    @property
    def counts(self) -> NDArray[np.float64]:
        """float64[n]."""
        return self._counts[: len(self.places)]

    def extend(self, tokens: Sequence[int]) -> None:
        """Count more tokens."""
        places = self.places
        for token in tokens:
            place = places.get(token)
            if place is None:
                place = places[token] = len(places)
                if place == len(self._tokens):
                    self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
                    self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
                self._tokens[place] = token
            if len(self.seen) >= self.n_prompt:
                self._counts[place] += 1
            self.seen.append(token)


class Penalties:
    """The histories of the texts that are being generated."""

    def __init__(self) -> None:
        self._histories: OrderedDict[int, _History] = OrderedDict()  # by the identity of the list of tokens

    def entries(
        self, params: SamplingParams, tokens: Sequence[int], n_prompt: int, n_vocab: int
    ) -> Entries | None:
        """What changes a row; None if nothing does. Raises what the host's sampler would."""
        biased, bias = bias_arrays(params, n_vocab)
        used = np.empty(0, np.int32)
        counts = np.empty(0, np.float64)
        places: dict[int, int] = {}
        if params.penalizes and len(tokens):
            history = self._history(tokens, n_prompt)
            used, counts, places = history.tokens, history.counts, history.places
        repetition = np.full(len(used), params.repetition_penalty, np.float32)
        presence, frequency = np.float32(params.presence_penalty), np.float32(params.frequency_penalty)
        # As in native code: the numbers are float32, and what is subtracted is made of them in float64.
        minus = np.where(counts > 0, float(presence) + float(frequency) * counts, 0.0).astype(np.float32)
        plus = np.zeros(len(used), np.float32)
        if biased is None or bias is None:
            return Entries(used, repetition, minus, plus) if len(used) else None
        at = np.array([places.get(token, -1) for token in biased.tolist()], np.int64)
        plus[at[at >= 0]] = bias[at >= 0]
        new = biased[at < 0]
        return Entries(
            np.concatenate([used, new]),
            np.concatenate([repetition, np.ones(len(new), np.float32)]),
            np.concatenate([minus, np.zeros(len(new), np.float32)]),
            np.concatenate([plus, bias[at < 0]]),
        )

    def _history(self, tokens: Sequence[int], n_prompt: int) -> _History:
        """The counts of a text: those of the last step and of what came since, if the rest is the same."""
        key = id(tokens)
        tokens = tokens if isinstance(tokens, list) else list(tokens)
        history = self._histories.pop(key, None)
        n = 0 if history is None else len(history.seen)
        if history is None or history.n_prompt != n_prompt or tokens[:n] != history.seen:
            history, n = _History(n_prompt), 0
        history.extend(tokens[n:])
        self._histories[key] = history
        if len(self._histories) > MAX_HISTORIES:
            self._histories.popitem(last=False)
        return history
