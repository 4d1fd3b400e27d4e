"""The tiny random encoders of tests/data/encoders (scripts/tiny/make_encoders.py), and ways to run them."""

from functools import cache
from pathlib import Path

import numpy as np

from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.models import read_spec
from stretto.weights.gguf import GGUF

FOLDER = Path(__file__).parent / "data" / "encoders"
NAMES = sorted(path.stem for path in FOLDER.glob("*.gguf"))
TEXTS = 0, 1
N_CELLS = 128


@cache
def file_of(name):
    return GGUF(FOLDER / f"{name}.gguf")


@cache
def answers(name):
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as stored:
        return dict(stored)


def spec_of(name):
    return read_spec(file_of(name))


def reference(name, spec=None):
    return ReferenceBackend(file_of(name), spec or spec_of(name), N_CELLS)


def native(name, threads=2, kv="f32", spec=None, **options):
    return NativeBackend(file_of(name), spec or spec_of(name), N_CELLS, threads, kv, **options)


def text_of(name, text):
    """Tokens and token types of one of the two texts."""
    return answers(name)[f"tokens.{text}"].tolist(), answers(name)[f"types.{text}"].tolist()


def batch_of(*texts):
    """A batch of whole texts, each (tokens, types)."""
    batch = Batch()
    for sequence, (tokens, types) in enumerate(texts):
        batch.add_text(tokens, sequence, types)
    batch.place(Cells(N_CELLS))
    return batch


def hidden_of(backend, *texts):
    """float32[n, n_embd] of whole texts in one pass."""
    return backend.hidden(batch_of(*texts))
