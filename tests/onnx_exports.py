"""Exported models in memory, and short ways to run them: texts with a past, and batches over cells."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from stretto.backends.onnx_session import open_session
from stretto.cache.cells import Cells
from stretto.export.decoder import build
from stretto.text.bpe import ALPHABET
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_models import FOLDER, N_CELLS, text_batch, tiny_file, tiny_spec

TEMPLATE = "{% for message in messages %}{{ message.content }}<|end|>{% endfor %}"


def with_vocabulary(name, path):
    """A tiny model with a vocabulary: 93 bytes, two of them merged, a BOS and an end token."""
    tokens = [*list(ALPHABET)[:93], "".join(list(ALPHABET)[:2]), "<|start|>", "<|end|>"]
    vocabulary = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * 94 + [3, 3], np.int32),
        "tokenizer.ggml.merges": [" ".join(list(ALPHABET)[:2])],
        "tokenizer.ggml.bos_token_id": 94,
        "tokenizer.ggml.eos_token_id": 95,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": TEMPLATE,
    }
    with GGUF(FOLDER / f"{name}.gguf") as file:
        types = {key: file.metadata.types[key] for key in file.metadata}
        write_gguf(path, {**file.metadata, **vocabulary}, file.tensors, types=types)
    return path


def session_of(path):
    """ONNX Runtime's session for the file of a model, as Stretto opens it, on one thread."""
    return open_session(path, "cpu", 1).raw


@cache
def tiny_session(name, precision="f32", form="gqa"):
    """A tiny model, exported."""
    spec = replace(tiny_spec(name), context_length=N_CELLS)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(build(tiny_file(name), spec, precision, form).SerializeToString())
        return session_of(path)


def type_of(value):
    return np.float16 if "float16" in value.type else np.float32


def named(session, feeds):
    """The outputs by name."""
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


class Past:
    """Texts of one length with their past: `run` takes tokens [batch, n], and gives logits of each."""

    def __init__(self, session, batch=1):
        self.session, self.batch, self.length = session, batch, 0
        self.past = {
            value.name: np.zeros((batch, value.shape[1], 0, value.shape[3]), type_of(value))
            for value in session.get_inputs()
            if value.name.startswith("past_key_values")
        }

    def run(self, tokens, mask=None, positions=None):
        n = tokens.shape[1]
        total = self.length + n
        feeds = {
            "input_ids": tokens.astype(np.int64),
            "attention_mask": np.ones((self.batch, total), np.int64) if mask is None else mask,
            "position_ids": np.tile(np.arange(self.length, total), (self.batch, 1))
            if positions is None
            else positions,
        }
        found = named(self.session, feeds | self.past)
        self.past = {name: found[name.replace("past_key_values", "present")] for name in self.past}
        self.length = total
        return found["logits"]


class Pools:
    """Cells: `forward` runs a placed batch, as backends do."""

    def __init__(self, session, n_cells=N_CELLS):
        self.session = session
        self.visible = [v.name for v in session.get_inputs() if v.name.startswith("visible")]
        self.pools = {
            value.name: np.zeros((n_cells, value.shape[1]), type_of(value))
            for value in session.get_inputs()
            if value.name.startswith("cells.")
        }
        self.n_cells = n_cells

    def forward(self, batch):
        placement, positions = batch.placement, batch.positions.astype(np.int64)
        seen = np.zeros((len(batch), self.n_cells), bool)
        for row, (view, length) in enumerate(zip(placement.view_of, placement.lengths, strict=True)):
            seen[row, placement.views[view][:length]] = True
        feeds = {
            "tokens": batch.tokens.astype(np.int64),
            "positions": positions,
            "cells": placement.cells.astype(np.int64),
            "rows": batch.wanted.astype(np.int64),
        }
        for name in self.visible:
            window = name.removeprefix("visible").removeprefix(".")
            near = placement.table[None] > positions[:, None] - int(window or self.n_cells)
            feeds[name] = seen & near
        found = named(self.session, feeds | self.pools)
        self.pools = {name: found[name.replace("cells.", "updated.")] for name in self.pools}
        return found["logits"][0]


def text_rows(session, tokens, cuts=()):
    """float32[n, vocab] of a text, run in parts that end at `cuts`."""
    tokens = np.asarray(tokens)
    edges = [0, *cuts, len(tokens)]
    parts = list(pairwise(edges))
    if any(value.name == "cells" for value in session.get_inputs()):
        n_cells = max(N_CELLS, len(tokens))
        pools, cells, rows = Pools(session, n_cells), Cells(n_cells), []
        for begin, end in parts:
            batch = text_batch(tokens[begin:end], begin)
            batch.place(cells)
            rows.append(pools.forward(batch))
        return np.concatenate(rows)
    past = Past(session)
    return np.concatenate([past.run(tokens[None, begin:end])[0] for begin, end in parts])
