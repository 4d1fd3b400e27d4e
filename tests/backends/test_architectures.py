"""Tiny random models of the architectures, against the logits of transformers and of llama.cpp.

Each file of tests/data/tiny that has a file of answers beside it: the reference backend against transformers,
and against llama.cpp at the last positions. All compute in float32.
"""

import numpy as np
import pytest

from tiny_models import ALL, NAMES, TEXTS, answer, text_logits, tiny_backend

pytestmark = pytest.mark.golden

CASES = [name for name in ALL if name not in NAMES]
TOLERANCE = 1e-4
LLAMACPP = 2e-3  # it keeps some tables as half floats


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", CASES)
def test_logits(name, text):
    logits = text_logits(tiny_backend(name), answer(name, f"tokens.{text}"))
    expected = answer(name, f"logits.{text}")
    assert 0.1 < expected.std() < 10
    assert np.abs(logits - expected).max() < TOLERANCE * max(1.0, expected.std())
    rows = answer(name, f"llamacpp.{text}")
    assert np.abs(logits[-len(rows) :] - rows).max() < LLAMACPP * max(1.0, expected.std())
