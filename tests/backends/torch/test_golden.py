"""Real models on the torch backend, beside the exact log-probabilities of another implementation."""

import json
from pathlib import Path

import numpy as np
import pytest

import stretto
from torch_backends import DEVICE, INTERPRETED

if INTERPRETED:
    pytest.skip("real models are too large for Triton's interpreter", allow_module_level=True)

pytestmark = pytest.mark.golden
GOLDEN = Path(__file__).parents[2] / "data" / "golden"
STORED = {"smollm2": "smollm2-135m-instruct-q4_1.json", "gemma3": "gemma-3-270m-q4_k_m.json"}
# The mean distance of a token's log-probability: on a GPU with activations in 8 bits, and in bfloat16; in
# plain torch with bfloat16, and in float32, where what is left with Gemma is the answers' own rounding.
NEAR = {
    ("smollm2", "standard"): 0.06 if DEVICE == "cuda" else 0.02,
    ("gemma3", "standard"): 0.075 if DEVICE == "cuda" else 0.02,
    ("smollm2", "high"): 0.02 if DEVICE == "cuda" else 1e-4,
    ("gemma3", "high"): 0.02 if DEVICE == "cuda" else 1e-3,
}
# In plain torch on a CPU one is enough.
CASES = list(NEAR) if DEVICE == "cuda" else [("smollm2", "standard")]


@pytest.mark.parametrize(("model", "precision"), CASES)
def test_log_probabilities_and_perplexity(request, model, precision):
    path = request.getfixturevalue(f"{model}_path")
    texts = json.loads((GOLDEN / STORED[model]).read_text())["score"].values()
    kv = "f16" if precision == "standard" else "f32"
    with stretto.load(path, backend="torch", device=DEVICE, cells=192, kv=kv, precision=precision) as llm:
        found = np.concatenate([llm.score(text["ids"]) for text in texts])
    exact = np.concatenate([text["logprobs"] for text in texts])
    distance = np.abs(found - exact)
    perplexity, exact_perplexity = np.exp(-found.mean()), np.exp(-exact.mean())
    print(f"{model} {precision}: mean {distance.mean():.4f}, at most {distance.max():.3f}, ", end="")
    print(f"perplexity {perplexity:.3f}, exact {exact_perplexity:.3f}")
    assert distance.mean() <= NEAR[model, precision]
    assert perplexity == pytest.approx(exact_perplexity, rel=NEAR[model, precision] / 2)
