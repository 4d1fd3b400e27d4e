"""Writes an image encoder with the shape of a known one and random weights, for measuring speed.

    python benchmarks/make_mmproj.py smolvlm-256m mmproj.gguf

The language model that belongs to it is that of make_model.py with the same name.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from stretto.vision.spec import VisionSpec
from stretto.weights.writer import write_gguf

HALF = (0.5, 0.5, 0.5)
SIGLIP = VisionSpec(
    projector="idefics3",
    image_size=512,
    patch_size=16,
    n_embd=768,
    n_ff=3072,
    n_head=12,
    n_layer=12,
    norm_eps=1e-6,
    activation="gelu",
    mean=HALF,
    std=HALF,
    n_out=576,
    merge=4,
    longest_edge=512,  # one tile; the model's own processor makes up to 17 of them, each like this one
    post_norm=True,
)
TINY = replace(SIGLIP, image_size=32, longest_edge=32, patch_size=8, merge=2, n_layer=2)
SPECS = {"smolvlm-256m": SIGLIP, "tiny": replace(TINY, n_embd=32, n_ff=64, n_head=4, n_out=64)}


def with_biases(spec):
    """All vectors that such an encoder has, and its projector's matrix."""
    parts = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down")
    names = {f"v.blk.{i}.{part}.bias" for i in range(spec.n_layer) for part in parts}
    matrix = ("mm.model.fc.weight", (spec.n_out, spec.n_embd * spec.merge**2))
    return replace(spec, biases=frozenset({"v.patch_embd.bias", *names}), projector_tensors=(matrix,))


def metadata(spec):
    return {
        "general.architecture": "clip",
        "general.name": "random weights",
        "general.file_type": 1,
        "clip.has_vision_encoder": True,
        "clip.projector_type": spec.projector,
        "clip.use_gelu": spec.activation == "gelu",
        "clip.vision.image_size": spec.image_size,
        "clip.vision.patch_size": spec.patch_size,
        "clip.vision.embedding_length": spec.n_embd,
        "clip.vision.feed_forward_length": spec.n_ff,
        "clip.vision.projection_dim": spec.n_out,
        "clip.vision.block_count": spec.n_layer,
        "clip.vision.attention.head_count": spec.n_head,
        "clip.vision.attention.layer_norm_epsilon": spec.norm_eps,
        "clip.vision.image_mean": np.array(spec.mean, np.float32),
        "clip.vision.image_std": np.array(spec.std, np.float32),
        "clip.vision.projector.scale_factor": spec.merge,
        "clip.vision.preproc_image_size": spec.longest_edge,
    }


def tensors(spec, rng):
    """Name → array: matrices as half floats, which keep about unit variance; the rest as floats."""
    found = {}
    for name, shape in spec.tensors().items():
        if len(shape) == 1:
            found[name] = np.full(shape, name.endswith("weight"), np.float32)
        elif name in ("v.patch_embd.weight", "v.position_embd.weight"):
            found[name] = rng.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)
        else:
            found[name] = rng.normal(0, shape[1] ** -0.5, shape).astype(np.float16)
    return found


def make(path, spec, seed=0):
    spec = with_biases(spec)
    write_gguf(path, metadata(spec), tensors(spec, np.random.default_rng(seed)))
    return Path(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SPECS)
    parser.add_argument("path", type=Path)
    args = parser.parse_args()
    make(args.path, SPECS[args.shape])
    print(f"{args.path}: {args.path.stat().st_size / 1e6:.1f} MB, {SPECS[args.shape]}")


if __name__ == "__main__":
    main()
