"""Stretto: through its public calls, and the backend's bare steps."""

import time

import numpy as np

import stretto
from gpus.clock import synchronize
from stretto.backends.base import Batch, Decoding
from stretto.cache.cells import Cells
from stretto.loading.open import open_model
from stretto.options.loading import LoadOptions

SAMPLING = {"greedy": {"temperature": 0}, "default sampler": {}}
PIECE = 4096  # tokens of prompts in a pass


def ids(n_vocab, count, seed):
    return np.random.default_rng(seed).integers(0, n_vocab, count).tolist()


class Public:
    """A model through `stretto.load`; prefixes are computed once, and forked for every sample."""

    def __init__(self, path, cells, **options):
        limits = stretto.Limits(max_running=256, max_tokens_per_step=PIECE, max_step_ms=1000.0)
        begun = time.perf_counter()
        self.llm = stretto.load(path, cells=cells, limits=limits, **options)
        synchronize()
        self.load_seconds = time.perf_counter() - begun
        self.prefixes = {}
        self.round = 0

    def _sequences(self, rows, depth, forks):
        """One sequence for each row behind a prompt of its own, or all of them forks of one."""
        key = rows, depth, forks
        if key not in self.prefixes:
            for other in self.prefixes.values():
                for sequence in other:
                    sequence.close()
            self.prefixes = {}
            n_vocab = self.llm.tokenizer.n_vocab
            prompts = [ids(n_vocab, depth, 1000 * depth + i) for i in range(1 if forks else rows)]
            self.prefixes[key] = [self.llm.sequence(prompt) for prompt in prompts]
            self.llm.logits(self.prefixes[key])
        found = self.prefixes[key]
        if forks:
            return [found[0].fork(seed=i) for i in range(rows)]
        return [sequence.fork(seed=i) for i, sequence in enumerate(found)]

    def decode(self, rows, depth, tokens, sampling="greedy", forks=False):
        """Tokens a second of `llm.generate`, each row with one token of its prompt left to compute."""
        sequences = self._sequences(rows, depth, forks)
        for i, sequence in enumerate(sequences):
            sequence.append([1 + i])
        options = {"max_tokens": tokens, "ignore_eos": True, **SAMPLING[sampling]}
        begun = time.perf_counter()
        if rows == 1:
            self.llm.generate(sequences[0], **options)
        else:
            self.llm.generate(sequences, **options)
        seconds = time.perf_counter() - begun
        for sequence in sequences:
            sequence.close()
        return rows * tokens / seconds

    def prompt_seconds(self, length):
        """Seconds until the first token of a new prompt."""
        self.round += 1
        prompt = ids(self.llm.tokenizer.n_vocab, length, 7_000_000 + self.round)
        begun = time.perf_counter()
        self.llm.generate(prompt, max_tokens=1, temperature=0, ignore_eos=True)
        return time.perf_counter() - begun

    def close(self):
        self.prefixes = {}
        self.llm.close()


class Bare:
    """The backend's forward passes alone; K and V of prefixes are whatever is in the cells."""

    def __init__(self, path, cells, **options):
        self.backend = open_model(path, LoadOptions(cells=cells, **options)).backend
        self.cells = Cells(self.backend.n_cells)
        self.shape = None

    def _place(self, rows, depth, forks):
        """Sequences of `depth` tokens, their cells scattered, as those of sequences that grew together."""
        if self.shape == (rows, depth, forks):
            for row in range(rows):
                self.cells.remove(row, depth)
            return
        self.cells.clear()
        self.shape = rows, depth, forks
        columns = 1 if forks else rows
        positions = np.repeat(np.arange(depth), columns).tolist()
        owners = [tuple(range(rows))] * depth if forks else [(row,) for row in range(rows)] * depth
        self.cells.place([1] * len(positions), positions, owners)

    def decode(self, rows, depth, tokens, forks=False):
        """Tokens a second of decode steps, each launched when its batch is ready."""
        self._place(rows, depth, forks)
        feed, order = list(range(1, rows + 1)), list(range(rows))
        synchronize()
        begun = time.perf_counter()
        for _ in range(tokens):
            self.backend.forward(Decoding(self.cells, feed, order))
        synchronize()
        return rows * tokens / (time.perf_counter() - begun)

    def prompt_seconds(self, length):
        self.cells.clear()
        self.shape = None
        batch = Batch()
        batch.extend(ids(self.backend.spec.n_vocab, length, length), 0, (0,), logits=True)
        batch.place(self.cells)
        synchronize()
        begun = time.perf_counter()
        self.backend.forward(batch)
        synchronize()
        return time.perf_counter() - begun

    def close(self):
        self.backend.close()
