"""Random prompts, options and probes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.llm import LLM

N_PROBES = 6


class Shared:
    """A hook for many requests at once: forbids one token."""

    def __call__(self, logits: NDArray[np.float32], tokens: list[int]) -> None:
        """For one row."""
        logits[1] = -np.inf

    def batch(self, logits: NDArray[np.float32], rows: list[Any]) -> None:
        """The same for several rows."""
        logits[:, 1] = -np.inf


class Draw:
    """Draws requests for one model."""

    def __init__(self, llm: LLM, seed: int) -> None:
        self.llm = llm
        self.shared = Shared()
        rng = random.Random(seed)
        most = llm.context_length // 3
        self.heads = [self.ids(rng, most // 2) for _ in range(4)]
        self.probes = [self.probe(rng) for _ in range(N_PROBES)]

    def ids(self, rng: random.Random, n: int) -> list[int]:
        return rng.choices(range(2, min(self.llm.spec.n_vocab, 5000)), k=n)

    def prompt(self, rng: random.Random) -> list[int]:
        """Short or long, often with a beginning that others have."""
        most = self.llm.context_length // 3
        head = rng.choice(self.heads)[: rng.randint(0, most // 2)] if rng.random() < 0.6 else []
        tail = rng.choice((1, 3, 10, most // 2))
        return head + self.ids(rng, rng.randint(1, max(1, tail)))

    def options(self, rng: random.Random) -> dict[str, Any]:
        """What any request may have."""
        found: dict[str, Any] = {
            "max_tokens": rng.choice((1, 4, 12, 40)),
            "priority": rng.choice((-1, 0, 0, 3)),
        }
        choices: dict[str, Any] = {
            "seed": rng.randint(0, 99),
            "temperature": rng.choice((0.0, 0.7, 1.5)),
            "stop": self.llm.tokenizer.decode(self.ids(rng, 1)) or "x",
            "repetition_penalty": 1.2,
            "logprobs": 3,
            "ignore_eos": True,
            "timeout": rng.choice((0.001, 0.02, 0.2, 5.0)),
            "hooks": [self.shared],
        }
        for name, value in choices.items():
            if rng.random() < 0.2:
                found[name] = value
        return found

    def probe(self, rng: random.Random) -> tuple[list[int], dict[str, Any]]:
        """A request whose tokens are known."""
        options = {"seed": rng.randint(0, 99), "max_tokens": 16, "ignore_eos": True, "hooks": [self.shared]}
        return self.prompt(rng), options | rng.choice(({}, {"temperature": 0.0}, {"frequency_penalty": 0.5}))
