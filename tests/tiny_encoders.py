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
from stretto.weights.writer import write_gguf

FOLDER = Path(__file__).parent / "data" / "encoders"
NAMES = sorted(path.stem for path in FOLDER.glob("*.gguf"))
TEXTS = 0, 1
N_CELLS = 128

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = ("cat", "dog", "bird", "runs", "sleeps", "the", "a", "fast")
CLS, SEP = 2, 3


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


def make_batch(*texts):
    """A batch of whole texts, each (tokens, types)."""
    batch = Batch()
    for sequence, (tokens, types) in enumerate(texts):
        batch.add_text(tokens, sequence, types)
    batch.place(Cells(N_CELLS))
    return batch


def hidden_of(backend, *texts):
    """float32[n, n_embd] of whole texts in one pass."""
    return backend.hidden(make_batch(*texts))


def with_words(name, target, n_vocab=96, **changes):
    """A tiny encoder's file with a vocabulary of a few words."""
    file = file_of(name)
    words = [*SPECIAL, *(f"▁{word}" for word in WORDS)]
    words += [f"x{i}" for i in range(n_vocab - len(words))]
    vocabulary = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (n_vocab - len(SPECIAL)),
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": CLS,
        "tokenizer.ggml.seperator_token_id": SEP,
        "tokenizer.ggml.padding_token_id": 0,
    }
    write_gguf(target, dict(file.metadata) | vocabulary | changes, file.tensors)
    return target


def ids(*words):
    """The tokens of a text of such words."""
    return [CLS, *(len(SPECIAL) + WORDS.index(word) for word in words), SEP]
