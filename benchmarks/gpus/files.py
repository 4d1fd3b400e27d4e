"""Files with the shapes of known models and random weights, made when they are first asked for."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from shapes import DENSE, make
from stretto.weights.formats import Format

NEEDED_BYTES = 40 << 30  # of a folder in memory that is to take an 8B model and its quantised forms


def folder(given=None):
    """Where files go: into memory where there is room, so that loading never waits for a disk."""
    path = given or default_folder()
    path.mkdir(parents=True, exist_ok=True)
    return path


def default_folder():
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= NEEDED_BYTES:
        return memory / "stretto-gpu"
    return Path(tempfile.gettempdir(), "stretto-gpu")


def file_of(where, name, fmt="BF16", layers=None):
    """The path of a model's file."""
    shape = replace(DENSE[name], matrices=Format[fmt], embedding=Format[fmt])
    shape = replace(shape, n_layer=layers or shape.n_layer)
    path = where / f"{name}-{fmt.lower()}-{shape.n_layer}.gguf"
    return path if path.exists() else make(path, shape)


def n_vocab(name, layers=None):
    return replace(DENSE[name], n_layer=layers or DENSE[name].n_layer).n_vocab
