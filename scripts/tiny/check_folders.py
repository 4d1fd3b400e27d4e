"""Saves the tiny models as transformers does, reads the folders, and compares with the GGUF files' content.

    python scripts/tiny/check_folders.py [CASE …]

For each case: keys and tensors that differ from those of the GGUF file, and the largest difference between
the reference backend's logits and transformers'. Needs torch and transformers. Layers that predict further
tokens are in GGUF files and not in folders; those that share K and V have unused matrices in the former.
"""

from __future__ import annotations

import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests"))

from stretto.backends.reference import ReferenceBackend
from stretto.errors import StrettoError
from stretto.models import read_spec
from stretto.weights.folder import Folder
from tiny import base
from tiny.base import VOCABULARY, Case
from tiny.make import cases
from tiny_models import text_logits

N_CELLS = 64
models: list[Any] = []  # that cases have made


def remember(model: Any) -> Any:
    """As `base.run`, and keep the model."""
    models.append(model)
    return base.run(model)


def is_same(found: Any, expected: Any) -> bool:
    """Whether two values of metadata are equal, but for rounding."""
    if isinstance(expected, str):
        return bool(found == expected)
    one, other = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-6))


def check(name: str, case: Case, folder: Path) -> str:
    """Compare one case."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    made = case(rng)
    models[-1].save_pretrained(folder)
    with Folder(folder) as file:
        keys = [
            key
            for key, value in made.metadata.items()
            if not is_same(file.metadata.get(f"{made.architecture}.{key}", ""), value)
        ]
        tensors = [
            key
            for key, array in made.tensors.items()
            if key not in file.tensors
            or file.tensors[key].shape != array.shape
            or np.abs(file.tensors[key].dequantize().reshape(array.shape) - array).max() > 1e-6
        ]
        tokens = rng.integers(0, VOCABULARY, 48)
        backend = ReferenceBackend(file, read_spec(file, N_CELLS), N_CELLS)
        worst = np.abs(text_logits(backend, tokens) - made.logits(tokens)).max()
    return f"{name}: keys {keys or 'equal'}, tensors {tensors or 'equal'}, logits differ by {worst:.1e}"


def main(names: list[str]) -> None:
    """Compare the named cases, or all that transformers saves with plain numbers."""
    torch.set_num_threads(1)
    known = {name: case for name, case in cases().items() if not name.endswith(("-large", "-mxfp4"))}
    for module in [module for key, module in sys.modules.items() if key.startswith("tiny.")]:
        if module is not base and getattr(module, "run", None) is base.run:
            module.run = remember  # type: ignore[attr-defined]
    for name in names or known:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(check(name, known[name], Path(folder)))
            except (StrettoError, ValueError) as error:
                print(f"{name}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
