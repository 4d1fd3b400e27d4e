"""A watermark: a hook favours half of the vocabulary, and whoever knows the key can tell by counting."""

from itertools import pairwise

import numpy as np

import stretto

KEY, STRENGTH = 1234, 2.0


def green(previous: int, n_vocab: int) -> np.ndarray:
    """bool[n_vocab]: the favoured half of the vocabulary behind a token."""
    return np.random.default_rng((KEY, previous)).random(n_vocab) < 0.5


def watermark(logits: np.ndarray, tokens: list[int]) -> None:
    """The hook: lift the green tokens."""
    logits[green(tokens[-1], len(logits))] += STRENGTH


with stretto.load("smollm2") as llm:
    for name, hooks in (("plain", []), ("marked", [watermark])):
        options = stretto.Options(max_tokens=80, seed=3, ignore_eos=True, hooks=hooks)
        result = llm.generate("The history of the sea is", options)
        hits = [green(before, llm.tokenizer.n_vocab)[token] for before, token in pairwise(result.tokens)]
        above = (sum(hits) - len(hits) / 2) / np.sqrt(len(hits) / 4)  # in standard deviations
        print(f"{name}: {np.mean(hits):.0%} green tokens, {above:+.1f} standard deviations above chance")
