"""The language model's weights as prepare.py left them, and the way to float32. Needs NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def dequantize(data: np.ndarray, kind: str) -> np.ndarray:
    """uint8[rows, bytes] → float32[rows, columns], for the formats of the file that is trained with."""
    rows = len(data)
    if kind == "F32":
        return np.ascontiguousarray(data).view(np.float32)
    if kind == "Q4_1":
        blocks = np.ascontiguousarray(data).reshape(rows, -1, 20)
        scale, least = (
            np.ascontiguousarray(blocks[..., a : a + 2]).view(np.float16).astype(np.float32) for a in (0, 2)
        )
        nibbles = np.concatenate((blocks[..., 4:] & 15, blocks[..., 4:] >> 4), axis=-1)
        return (nibbles * scale + least).reshape(rows, -1)
    if kind == "Q8_0":
        blocks = np.ascontiguousarray(data).reshape(rows, -1, 34)
        scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
        return (blocks[..., 2:].view(np.int8) * scale).reshape(rows, -1)
    raise ValueError(f"no reader for {kind} here; add one, or train with another file")


def load_parts(folder: Path) -> dict[str, np.ndarray]:
    """What prepare.py wrote, its parts together."""
    found: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("lm-*.npz")):
        with np.load(path, allow_pickle=False) as part:
            found |= dict(part)
    if not found:
        raise FileNotFoundError(f"no lm-*.npz in {folder}; run training/prepare.py first")
    return found


def load_weights(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """float32 weights by their names in the GGUF file."""
    found = {}
    for key, data in parts.items():
        if key.startswith("tensor/"):
            _, kind, name = key.split("/")
            array = dequantize(data if data.ndim == 2 else data[None], kind)
            found[name] = array if data.ndim == 2 else array[0]
    return found
