"""Writes the trained weights as an `mmproj` GGUF file, which Stretto and llama.cpp read.

python training/export.py build/training/out/sketch.npz src/stretto/vision/sketch.gguf
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from stretto.weights.writer import write_gguf

IMAGE, PATCH, WIDTH, FF, HEADS, BLOCKS = 128, 16, 256, 1024, 4, 6  # as in model.py
EPS = 1e-5
MOST = 12_000_000  # bytes


def main(source: str, target: str) -> None:
    """Write `target` from `source`."""
    with np.load(source) as arrays:
        tensors = dict(arrays)
    # llama.cpp adds these to floats, or reads them row by row: they are small, and stay float32.
    for name in ("v.position_embd.weight", "v.patch_embd.weight"):
        tensors[name] = tensors[name].astype(np.float32)
    n_out = len(tensors["mm.2.bias"])
    half = np.full(3, 0.5, np.float32)
    metadata = {
        "general.architecture": "clip",
        "general.name": "sketch",
        "general.description": "An image encoder for SmolLM2-135M-Instruct, trained on synthetic pictures",
        "general.license": "apache-2.0",
        "general.file_type": 1,
        "clip.has_vision_encoder": True,
        "clip.projector_type": "mlp",
        "clip.use_gelu": True,
        "clip.vision.image_size": IMAGE,
        "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": WIDTH,
        "clip.vision.feed_forward_length": FF,
        "clip.vision.projection_dim": n_out,
        "clip.vision.block_count": BLOCKS,
        "clip.vision.feature_layer": np.array([BLOCKS], np.int32),
        "clip.vision.attention.head_count": HEADS,
        "clip.vision.attention.layer_norm_epsilon": EPS,
        "clip.vision.image_mean": half,
        "clip.vision.image_std": half,
    }
    write_gguf(target, metadata, tensors)
    size = Path(target).stat().st_size
    print(f"{target}: {size:,} bytes")
    if size > MOST:
        raise SystemExit(f"more than {MOST:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
