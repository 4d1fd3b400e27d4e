"""How probable a text is, token by token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.engine.engine import Engine
from stretto.engine.sequence import Sequence
from stretto.errors import ContextOverflow, InvalidRequest, Unsupported
from stretto.sampling.rng import RandomStream
from stretto.sampling.transforms import log_softmax

NUMBERS = 1 << 24  # logits held at once: 64 MB


def score(engine: Engine, tokens: list[int]) -> NDArray[np.float32]:
    """float32[n-1]: the log-probability of each token after the first, given those before it."""
    if len(tokens) < 2:
        raise InvalidRequest(f"a text of at least 2 tokens can be scored, not of {len(tokens)}")
    if len(tokens) > engine.context_length:
        raise ContextOverflow(f"the text has {len(tokens)} tokens and the context {engine.context_length}")
    if any(type(token) is not int for token in tokens):
        raise Unsupported("texts with images are not scored; use a sequence and its logits")
    scores = np.empty(len(tokens) - 1, np.float32)
    chunk = max(1, min(engine.chunk, NUMBERS // engine.spec.n_vocab))
    with Sequence(engine, (), RandomStream(None)) as sequence:
        sequence.running = True  # nobody else may change its cells meanwhile
        for start in range(0, len(scores), chunk):
            batch = Batch()
            for i, token in enumerate(tokens[start : min(start + chunk, len(scores))], start):
                batch.add(token, i, (sequence.id,), logits=True)
            for i, row in enumerate(engine.forward(batch), start):
                scores[i] = log_softmax(row)[tokens[i + 1]]
    return scores
