"""Runs the tiny models with llama.cpp (llama-cpp-python), compares with transformers, and stores the logits.

python scripts/tiny/check_llamacpp.py [CASE …]

Most cases differ by 1e-5 at most, those with GELU by 2e-3: llama.cpp reads it from a table of float16. Where
more is expected, a case says why.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import llama_cpp
import numpy as np

FOLDER = Path(__file__).parent.parent.parent / "tests" / "data" / "tiny"
F32 = 0  # ggml's code of float32, for K and V
SAME = 1e-2  # logits of one model; another one's differ by 1 and more


def compute_logits(path: Path, tokens: np.ndarray) -> np.ndarray:
    """float32[n, n_vocab]: one batch, float32 K and V, one thread."""
    params = llama_cpp.llama_model_default_params()
    params.use_mmap = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ValueError(f"{path.name}: llama.cpp does not load it")
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = 128, 128, 128
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = F32
    settings.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, settings)
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens.tolist()):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    if llama_cpp.llama_decode(context, batch):
        raise ValueError(f"{path.name}: llama.cpp does not run it")
    rows = []
    for i in range(len(tokens)):
        row = ctypes.cast(llama_cpp.llama_get_logits_ith(context, i), ctypes.POINTER(ctypes.c_float))
        rows.append(np.ctypeslib.as_array(row, (n_vocab,)).copy())
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.stack(rows)


def check(path: Path) -> str:
    """Compare one case, and keep llama.cpp's logits where they are the same model's."""
    with np.load(path, allow_pickle=False) as stored:
        answers = {name: array for name, array in stored.items() if not name.startswith("llamacpp")}
    try:
        found = [compute_logits(path.with_suffix(".gguf"), answers[f"tokens.{i}"]) for i in range(2)]
    except ValueError as error:
        return str(error)
    worst = max(float(np.abs(found[i] - answers[f"logits.{i}"]).max()) for i in range(2))
    if worst < SAME:
        answers |= {f"llamacpp.{i}": rows[-4:] for i, rows in enumerate(found)}  # all else is behind these
    np.savez(path, **answers)
    return f"{path.stem}: llama.cpp and transformers differ by {worst:.2e}"


def main(names: list[str]) -> None:
    """Compare the named cases, or all."""
    for path in sorted(FOLDER.glob("*.npz")):
        if path.stem != "golden" and (not names or path.stem in names):
            print(check(path))


if __name__ == "__main__":
    main(sys.argv[1:])
