"""The tiny random encoders of tests/data/vision (scripts/make_tiny_vision.py) and short ways to run them."""

from functools import cache
from pathlib import Path

import numpy as np

from stretto.vision.encoder import encode
from stretto.vision.image import Image
from stretto.vision.preprocess import normalise, prepare
from stretto.vision.spec import read_vision_spec
from stretto.weights.gguf import GGUF

FOLDER = Path(__file__).parent / "data" / "vision"
NAMES = ["gemma3", "idefics3", "mlp"]
PICTURES = 0, 1, 2


@cache
def vision_file(name):
    return GGUF(FOLDER / f"{name}.gguf")


@cache
def vision_answers():
    with np.load(FOLDER / "golden.npz", allow_pickle=False) as stored:
        return dict(stored)


def vision_answer(name, key):
    """What transformers made: image.I, pixels.I, vectors.I, grid.I"""
    return vision_answers()[f"{name}/{key}"]


def vision_spec(name):
    return read_vision_spec(vision_file(name))


def picture(i, name="mlp"):
    return Image.open(vision_answer(name, f"image.{i}"))


def patches(name, i, spec=None):
    """float32[n, n_patches, numbers] of a picture."""
    spec = spec or vision_spec(name)
    return normalise(prepare(picture(i, name), spec).tiles, spec)


def vectors(encoder, i):
    """float32[n, n_tokens, n_out] of a picture."""
    name = encoder.spec.projector
    return encode(encoder, patches(name, i, encoder.spec))
