"""Runs the tiny models with the newest llama.cpp (xllamacpp), compares the next token's log-probabilities.

python scripts/tiny/check_xllamacpp.py [CASE …]

It gives no logits, but the log-probabilities of what follows a text. It needs a vocabulary, so it gets a copy
of each file with one of 96 made-up words.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import xllamacpp

from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf

FOLDER = Path(__file__).parent.parent.parent / "tests" / "data" / "tiny"


def with_vocabulary(path: Path, target: Path) -> None:
    """Copy a model, and give it words."""
    file = GGUF(path)
    n = file.tensors["token_embd.weight"].shape[0]
    words = ["<unk>", "<s>", "</s>", *(chr(0x4E00 + i) for i in range(3, n))]
    vocabulary = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (n - 3),
        "tokenizer.ggml.merges": [f"{words[3]} {words[4]}"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    write_gguf(target, dict(file.metadata) | vocabulary, file.tensors)


def serve(path: Path) -> xllamacpp.Server:
    """llama.cpp with one model, float32 K and V, one thread."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def log_probabilities(server: xllamacpp.Server, tokens: np.ndarray, n_vocab: int) -> np.ndarray:
    """float64[n_vocab]: those of the next token; NaN where it gives none."""
    request = {"prompt": tokens.tolist(), "n_predict": 1, "n_probs": n_vocab, "temperature": 0.0}
    answer = server.handle_completions(request)
    found = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    if len(found) < n_vocab - 1:
        raise ValueError(f"only {len(found)} tokens")
    values = np.full(n_vocab, np.nan)
    for token in found:
        values[token["id"]] = token["logprob"]
    return values


def difference(server: xllamacpp.Server, tokens: np.ndarray, logits: np.ndarray) -> float:
    """The largest between its log-probabilities and those of the logits."""
    shifted = logits.astype(np.float64) - logits.max()
    expected = shifted - np.log(np.exp(shifted).sum())
    return float(np.nanmax(np.abs(expected - log_probabilities(server, tokens, len(logits)))))


def main(names: list[str]) -> None:
    """Compare the named cases, or all."""
    for path in sorted(FOLDER.glob("*.npz")):
        if path.stem == "golden" or (names and path.stem not in names):
            continue
        with np.load(path, allow_pickle=False) as stored, tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "model.gguf"
            with_vocabulary(path.with_suffix(".gguf"), copy)
            try:
                server = serve(copy)
                worst = max(
                    difference(server, stored[f"tokens.{i}"], stored[f"logits.{i}"][-1]) for i in range(2)
                )
            except (RuntimeError, ValueError) as error:
                print(f"{path.stem}: {error}")
            else:
                print(f"{path.stem}: the newest llama.cpp and transformers differ by {worst:.2e}")


if __name__ == "__main__":
    main(sys.argv[1:])
