"""Makes tests/data/encoders/CASE.gguf and CASE.npz for all tiny encoders, always the same."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from stretto.weights.writer import write_gguf
from tiny.base import LENGTHS, VOCABULARY
from tiny.encoders import CASES, Case

FOLDER = Path(__file__).parent.parent.parent / "tests" / "data" / "encoders"


def make(name: str, case: Case) -> None:
    """Write one model, and what transformers computes for two texts; the second has two token types."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    made = case(rng)
    metadata = {"general.architecture": made.architecture}
    metadata |= {f"{made.architecture}.{key}": value for key, value in made.metadata.items()}
    metadata |= {"tokenizer.ggml.model": "none", f"{made.architecture}.vocab_size": VOCABULARY}
    n_types = len(made.tensors.get("token_types.weight", ()))
    if n_types:
        metadata["tokenizer.ggml.token_type_count"] = n_types
    write_gguf(FOLDER / f"{name}.gguf", metadata, made.tensors)
    answers = {}
    for i, length in enumerate(LENGTHS):
        tokens, types = rng.integers(1, VOCABULARY, length), np.zeros(length, np.int64)
        if i and n_types > 1:
            types[length // 3 :] = 1
        hidden = made.hidden(tokens, types)
        answers |= {f"tokens.{i}": tokens.astype(np.int32), f"types.{i}": types.astype(np.int32)}
        answers[f"hidden.{i}"] = hidden
        if made.scores is not None:
            answers[f"scores.{i}"] = made.scores(tokens, types)
        if made.vector is not None:
            answers[f"vector.{i}"] = made.vector(hidden)
    np.savez(FOLDER / f"{name}.npz", **answers)
    print(
        f"{name}: {(FOLDER / f'{name}.gguf').stat().st_size} bytes, hidden states vary by {hidden.std():.2f}"
    )


def main(names: list[str]) -> None:
    """Make the named cases, or all."""
    torch.set_num_threads(1)  # one order of summation
    FOLDER.mkdir(exist_ok=True)
    for name in names or CASES:
        make(name, CASES[name])


if __name__ == "__main__":
    main(sys.argv[1:])
