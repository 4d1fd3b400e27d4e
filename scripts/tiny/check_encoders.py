"""Runs the tiny encoders with llama.cpp (llama-cpp-python), compares with transformers, stores hidden states.

python scripts/tiny/check_encoders.py [CASE …]

llama.cpp takes GELU's tanh form for all of these, from a table of float16, where most models were trained
with the exact one: hidden states of unit variance differ by up to 1e-2.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import llama_cpp
import numpy as np

FOLDER = Path(__file__).parent.parent.parent / "tests" / "data" / "encoders"
KEPT = 4  # rows: all else is behind these
SAME = 0.05  # another model's states differ by 1 and more


NONE, MEAN = 0, 1  # codes of pooling_type


def hidden_of(path: Path, tokens: np.ndarray, pooling: int) -> np.ndarray:
    """float32[n, n_embd], or with a pooling float32[1, size]: one batch, one thread."""
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise ValueError(f"{path.name}: llama.cpp does not load it")
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 128
    settings.n_threads = settings.n_threads_batch = 1
    settings.embeddings, settings.pooling_type, settings.flash_attn_type = True, pooling, 0
    context = llama_cpp.llama_init_from_model(model, settings)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens.tolist()):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    if llama_cpp.llama_encode(context, batch):
        raise ValueError(f"{path.name}: llama.cpp does not run it")
    rows, size = [], llama_cpp.llama_model_n_embd(model)
    for i in range(len(tokens) if pooling == NONE else 1):
        get = llama_cpp.llama_get_embeddings_ith if pooling == NONE else llama_cpp.llama_get_embeddings_seq
        row = ctypes.cast(get(context, i), ctypes.POINTER(ctypes.c_float))
        rows.append(np.ctypeslib.as_array(row, (size,)).copy())
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.stack(rows)


def check(path: Path) -> str:
    """Compare the text with one token type, and keep llama.cpp's states where they are the same model's."""
    with np.load(path, allow_pickle=False) as stored:
        answers = {name: array for name, array in stored.items() if not name.startswith("llamacpp")}
    try:
        # It applies matrices behind the pooling to all tokens where there is none, so these are pooled.
        pooling = MEAN if "vector.0" in answers else NONE
        found = hidden_of(path.with_suffix(".gguf"), answers["tokens.0"], pooling)
    except ValueError as error:
        return str(error)
    expected = answers["vector.0"][None] if pooling == MEAN else answers["hidden.0"]
    worst = float(np.abs(found - expected).max())
    if worst < SAME:
        answers["llamacpp.0"] = found[-KEPT:]
    np.savez(path, **answers)
    return f"{path.stem}: llama.cpp and transformers differ by {worst:.2e}"


def main(names: list[str]) -> None:
    """Compare the named cases, or all."""
    for path in sorted(FOLDER.glob("*.npz")):
        if not names or path.stem in names:
            print(check(path), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
