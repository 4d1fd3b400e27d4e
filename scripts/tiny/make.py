"""Makes tests/data/tiny/CASE.gguf and CASE.npz for all cases, always the same."""

from __future__ import annotations

import importlib
import sys
import zlib
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from stretto.weights.writer import write_gguf
from tiny.base import LENGTHS, VOCABULARY, Case

FOLDER = Path(__file__).parent.parent.parent / "tests" / "data" / "tiny"
GROUPS = (
    "dense",
    "experts",
    "experts_more",
    "experts_routed",
    "gptoss",
    "latent",
    "gemma4",
    "kimi",
    "recurrent",
    "rwkv",
)


def cases() -> dict[str, Case]:
    """All cases by name."""
    found: dict[str, Case] = {}
    for group in GROUPS:
        if (Path(__file__).parent / f"{group}.py").exists():
            found |= importlib.import_module(f"tiny.{group}").CASES
    return found


def make(name: str, case: Case) -> None:
    """Write one model and the logits that transformers computes for it."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    made = case(rng)
    metadata = {"general.architecture": made.architecture}
    metadata |= {f"{made.architecture}.{key}": value for key, value in made.metadata.items()}
    # llama.cpp loads a model without a vocabulary if the file says that it has none.
    metadata |= {"tokenizer.ggml.model": "none", f"{made.architecture}.vocab_size": VOCABULARY}
    write_gguf(FOLDER / f"{name}.gguf", metadata, made.tensors)
    answers = {}
    for i, length in enumerate(LENGTHS):
        tokens = rng.integers(0, VOCABULARY, length)
        answers |= {f"tokens.{i}": tokens.astype(np.int32), f"logits.{i}": made.logits(tokens)}
    np.savez(FOLDER / f"{name}.npz", **answers)
    spread = ", ".join(f"{answers[f'logits.{i}'].std():.2f}" for i in range(len(LENGTHS)))
    print(f"{name}: {(FOLDER / f'{name}.gguf').stat().st_size} bytes, logits vary by {spread}")


def main(names: list[str]) -> None:
    """Make the named cases, or all that are kept."""
    torch.set_num_threads(1)  # one order of summation
    known = cases()
    for name in names or (name for name in known if not name.endswith("-large")):
        make(name, known[name])


if __name__ == "__main__":
    main(sys.argv[1:])
