"""Tiny random models of the architectures, against the logits of transformers and of llama.cpp.

Each file of tests/data/tiny that has a file of answers beside it: the reference backend against transformers,
and against llama.cpp at the last positions, where it runs the same model. All compute in float32.
"""

import numpy as np
import pytest

from tiny_models import ALL, FOLDER, NAMES, TEXTS, answer, answers, text_logits, tiny_backend

pytestmark = pytest.mark.golden

CASES = [name for name in ALL if name not in NAMES]
TOLERANCE = 1e-4
# llama.cpp has no windows for Phi-3, the sizes of the real Gemma 3n built in, another ramp for gpt-oss, and
# rounds activations beside MXFP4.
WITHOUT_LLAMACPP = ["phi3-window", "gemma3n", "gpt-oss-ramp", "gpt-oss-mxfp4"]
# Compared with llama.cpp by scripts/tiny/check_xllamacpp.py: its log-probabilities are not kept.
WITHOUT_LLAMACPP += ["arwkv7", "kimi-linear", "minicpm", "rwkv7", "smallthinker"]
WITHOUT_LLAMACPP += ["codeshell", "orion", "qwen", "xverse"]
# Those of scripts/tiny/table.py: the script that makes them compares with llama.cpp, and keeps a folder too.
FROM_TABLE = {path.parent.name for path in (FOLDER.parent / "folders").glob("*/answers.npz")}
LLAMACPP = 2e-3  # it keeps some tables as half floats
LLAMACPP_GELU = 1e-2  # such a table in many layers


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", CASES)
def test_logits(name, text):
    logits = text_logits(tiny_backend(name), answer(name, f"tokens.{text}"))
    expected = answer(name, f"logits.{text}")
    assert 0.1 < expected.std() < 10
    assert np.abs(logits - expected).max() < TOLERANCE * max(1.0, expected.std())
    rows = answers(name).get(f"llamacpp.{text}", logits[:0])
    if not len(rows):
        assert name in WITHOUT_LLAMACPP or name in FROM_TABLE
        return
    most = LLAMACPP_GELU if name.startswith("gemma4") else LLAMACPP
    assert np.abs(logits[-len(rows) :] - rows).max() < most * max(1.0, expected.std())


def test_keys_normalised_after_the_rope_are_turned_without_their_weights():
    # Deeper layers differ: with weights after the rope, scores depend on more than the distance.
    backend, moved = tiny_backend("hunyuan-dense"), tiny_backend("hunyuan-dense")
    tokens = answer("hunyuan-dense", "tokens.0")[:12]
    text_logits(backend, tokens)
    text_logits(moved, tokens, 9)
    backend.rotate_cells(np.arange(12, dtype=np.int32), 9)
    np.testing.assert_allclose(backend.keys[0], moved.keys[0], atol=2e-6)
