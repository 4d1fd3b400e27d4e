"""llama.cpp loads what our writer writes, and computes with it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from stretto.weights.formats import Format
from stretto.weights.writer import Quantized, write_gguf

pytest.importorskip("xllamacpp", reason="llama.cpp (the xllamacpp package) is not installed here")

# llama.cpp ends the process on some errors, so it gets one of its own.
SCRIPT = """
import json, os, sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 64
params.n_parallel = 1
params.fit_params = False
params.warmup = False
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
request = {"prompt": [4, 5, 6], "n_predict": 4, "temperature": 0}
out = server.handle_completions(request)
print("RESULT " + json.dumps(out), flush=True)
os._exit(0)
"""


def tiny_llama(path, fmt):
    """A llama of two layers with random weights and a byte vocabulary."""
    rng = np.random.default_rng(1)
    n_embd, n_ff, n_head = 64, 128, 2
    tokens = (
        ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "a", "b", "ab", "▁a"]
    )
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 64,
        "llama.embedding_length": n_embd,
        "llama.feed_forward_length": n_ff,
        "llama.attention.head_count": n_head,
        "llama.attention.head_count_kv": n_head,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": n_embd // n_head,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.linspace(0, -1, len(tokens), dtype=np.float32),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 5,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }

    def matrix(rows, columns):
        return Quantized(rng.standard_normal((rows, columns)).astype(np.float32) * 0.3, fmt)

    tensors = {"token_embd.weight": matrix(len(tokens), n_embd)}
    for i in range(2):
        for name, rows, columns in (
            ("attn_q", n_embd, n_embd),
            ("attn_k", n_embd, n_embd),
            ("attn_v", n_embd, n_embd),
            ("attn_output", n_embd, n_embd),
            ("ffn_gate", n_ff, n_embd),
            ("ffn_up", n_ff, n_embd),
            ("ffn_down", n_embd, n_ff),
        ):
            tensors[f"blk.{i}.{name}.weight"] = matrix(rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{i}.{name}.weight"] = np.ones(n_embd, np.float32)
    tensors["output_norm.weight"] = np.ones(n_embd, np.float32)
    write_gguf(path, metadata, tensors)


@pytest.mark.golden
@pytest.mark.parametrize("name", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_llamacpp_runs_our_file(tmp_path, name):
    path = tmp_path / "tiny.gguf"
    tiny_llama(path, Format[name])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, timeout=300, check=False
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stderr[-2000:]
    out = json.loads(results[0].removeprefix("RESULT "))
    assert out["usage"]["prompt_tokens"] == 3
    assert out["usage"]["completion_tokens"] >= 1
