"""The tiny random models of tests/data/tiny (scripts/make_tiny_models.py) and short ways to run them."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from stretto.backends.base import host_rows
from stretto.backends.batch import Batch, Decoding
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.models import read_spec
from stretto.weights.gguf import GGUF

FOLDER = Path(__file__).parent / "data" / "tiny"
# The first ones, in float16, whose answers are in golden.npz; all others have a file of answers each.
NAMES = [
    *("gemma3", "gemma3-linear", "llama", "llama-linear", "llama-llama3", "llama-yarn"),
    *("qwen2", "qwen2-yarn", "qwen3"),
]
ALL = sorted(path.stem for path in FOLDER.glob("*.gguf"))
TEXTS = 0, 1
N_CELLS = 64


@cache
def tiny_file(name):
    return GGUF(FOLDER / f"{name}.gguf")


@cache
def answers(file):
    with np.load(FOLDER / f"{file}.npz", allow_pickle=False) as stored:
        return dict(stored)


def answer(name, key):
    """What transformers computed for a model: tokens.I, logits.I, frequencies, …; llama.cpp: llamacpp.I."""
    return answers("golden")[f"{name}/{key}"] if name in NAMES else answers(name)[key]


def with_layers(spec, **changes):
    """The spec with the same changes to all its layers."""
    return replace(spec, layers=tuple(replace(layer, **changes) for layer in spec.layers))


def with_mixers(spec, **changes):
    """The spec with the same changes to the mixers of all its layers."""
    layers = (replace(layer, mixer=replace(layer.mixer, **changes)) for layer in spec.layers)
    return replace(spec, layers=tuple(layers))


def tiny_spec(name, n_cells=N_CELLS):
    return read_spec(tiny_file(name), n_cells)


def tiny_backend(name, n_cells=N_CELLS, spec=None):
    return ReferenceBackend(tiny_file(name), spec or tiny_spec(name, n_cells), n_cells)


def text_batch(tokens, position=0, sequences=(0,)):
    """A batch that asks for the logits of every token."""
    batch = Batch()
    for offset, token in enumerate(tokens):
        batch.add(int(token), position + offset, sequences, logits=True)
    return batch


def text_logits(backend, tokens, position=0):
    """float32[n, n_vocab] of a text alone in a new table of cells."""
    batch = text_batch(tokens, position)
    batch.place(Cells(backend.n_cells))
    if backend.spec.recurrent:
        backend.clear_slots(np.array([0], np.int32))
        in_slots(batch, [0] * len(tokens))
    return host_rows(backend.forward(batch))


def decoded_logits(backend, name):
    """float32[3, n_vocab] of decode steps behind the beginning of a stored text."""
    cells, tokens = Cells(backend.n_cells), answer(name, "tokens.0").tolist()
    batch = text_batch(tokens[:4])
    batch.place(cells)
    backend.forward(batch)
    steps = (Decoding(cells, [token], [0]) for token in tokens[4:7])
    return np.concatenate([host_rows(backend.forward(step)) for step in steps])


def in_slots(batch, slots):
    """A placed batch whose rows advance the states in these slots."""
    batch.placed(replace(batch.placement, slots=np.array(slots, np.int32)))
