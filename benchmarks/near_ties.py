"""How often rounding exchanges experts at near ties: tokens whose logits are far from the reference's.

    python benchmarks/near_ties.py

Tiny random models of tests/data/tiny, as they are and with their matrices in Q8_0 but for the routers, 40
texts of 150 tokens. Far is a token that differs by more than 0.05, and by more than eight times the median of
its text.
"""

import tempfile
from pathlib import Path

import numpy as np

from stretto.backends.base import Batch
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache import Cells
from stretto.models import read_spec
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.writer import Quantized, write_gguf

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "tiny"
NAMES = "qwen3moe", "qwen2moe", "glm4-flash"
TEXTS, LENGTH, N_CELLS = 40, 150, 160
SETTINGS = [(precision, kv) for precision in ("standard", "high") for kv in ("f16", "f32")]


def quantize(file, path):
    """Write a model with its matrices in Q8_0 where their rows are whole blocks, but for routers."""
    tensors = {}
    for name, tensor in file.tensors.items():
        kept = len(tensor.shape) < 2 or tensor.shape[-1] % Format.Q8_0.block or "gate_inp" in name
        numbers = tensor.dequantize().reshape(tensor.shape)
        tensors[name] = tensor if kept else Quantized(numbers, Format.Q8_0)
    write_gguf(path, file.metadata, tensors, types=file.metadata.types)


def compute_logits(backend, tokens):
    """float32[n, n_vocab] of a text."""
    batch = Batch()
    for position, token in enumerate(tokens.tolist()):
        batch.add(token, position, (0,), logits=True)
    batch.place(Cells(N_CELLS))
    return np.asarray(backend.forward(batch))


def measure(file):
    """By precision and type of K and V: the number of far tokens, the farthest, the median of all."""
    spec = read_spec(file, N_CELLS)
    reference = ReferenceBackend(file, spec, N_CELLS)
    distances = {setting: [] for setting in SETTINGS}
    for seed in range(TEXTS):
        tokens = np.random.default_rng(seed).integers(0, spec.n_vocab, LENGTH)
        exact = compute_logits(reference, tokens)
        for precision, kv in SETTINGS:
            backend = NativeBackend(file, spec, N_CELLS, 1, kv=kv, precision=precision)
            distances[precision, kv].append(np.abs(compute_logits(backend, tokens) - exact).max(axis=1))
    found = {}
    for setting, rows in distances.items():
        far = sum(int((row > max(0.05, 8 * np.median(row))).sum()) for row in rows)
        found[setting] = far, float(np.max(rows)), float(np.median(rows))
    return found


def main():
    print("model       weights  precision  kv   far of 6000  farthest  median")
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            path = Path(folder) / f"{name}.gguf"
            quantize(GGUF(FOLDER / path.name), path)
            for weights, source in (("F32", FOLDER / path.name), ("Q8_0", path)):
                with GGUF(source) as file:
                    for (precision, kv), (far, farthest, median) in measure(file).items():
                        figures = f"{far:11} {farthest:10.4f}  {median:.1e}"
                        print(f"{name:11} {weights:8} {precision:10} {kv} {figures}")


if __name__ == "__main__":
    main()
