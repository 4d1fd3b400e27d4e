"""llama.cpp reads the formats we write, and files that were converted and quantised."""

import json
import subprocess
import sys

import numpy as np
import pytest

from small_llama import VOCABULARY, metadata, tensors
from stretto.backends.reference import ReferenceBackend
from stretto.models import read_spec
from stretto.quantize import quantize_model
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_models import text_logits

pytest.importorskip("xllamacpp", reason="llama.cpp (the xllamacpp package) is not installed here")

# llama.cpp ends the process on some errors, so it gets one of its own.
SCRIPT = """
import json, os, sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.fit_params, params.warmup = 64, 1, False, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
request = {"prompt": list(range(5, 21)), "n_predict": 1, "n_probs": 90, "temperature": 0.0}
found = server.handle_completions(request)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
print("RESULT " + json.dumps({token["id"]: token["logprob"] for token in found}), flush=True)
os._exit(0)
"""
WORDS = ["<unk>", "<s>", "</s>", *(chr(0x4E00 + i) for i in range(3, VOCABULARY))]
VOCABULARY_KEYS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": WORDS,
    "tokenizer.ggml.token_type": [3] * 3 + [1] * (VOCABULARY - 3),
    "tokenizer.ggml.merges": [f"{WORDS[3]} {WORDS[4]}"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


@pytest.mark.golden
@pytest.mark.parametrize("mix", ["q4_0", "q4_k_m", "q5_k_s", "q3_k_m", "q2_k", "iq4_xs", "q5_1"])
def test_llamacpp_gives_the_probabilities_of_the_reference(tmp_path, mix):
    path = tmp_path / "out.gguf"
    write_gguf(tmp_path / "source.gguf", metadata() | VOCABULARY_KEYS, tensors())
    quantize_model(tmp_path / "source.gguf", path, mix, threads=1)
    with GGUF(path) as file:
        logits = text_logits(ReferenceBackend(file, read_spec(file), 64), np.arange(5, 21))[-1].astype(float)
    expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    command = [sys.executable, "-c", SCRIPT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-2000:]
    found = json.loads(lines[0].removeprefix("RESULT "))
    assert len(found) > 50
    assert (
        max(abs(expected[int(token)] - value) for token, value in found.items()) < 0.25
    )  # 8-bit activations
