"""Random operations on native models with recurrent layers: always the bits of a computation from scratch."""

import random
from pathlib import Path

import numpy as np
import pytest

from stretto import Limits
from stretto.backends.native import NativeBackend
from stretto.engine import track
from stretto.errors import CacheFull
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

FOLDER = Path(__file__).parent.parent / "data" / "tiny"
NAMES = [
    name
    for name in ("qwen35", "lfm2", "nemotron_h", "falcon-h1", "mamba2", "jamba", "kimi-linear", "rwkv7")
    if (FOLDER / f"{name}.gguf").exists()
]
GREEDY = {"temperature": 0, "ignore_eos": True}
N_CHECKPOINTS = 5
OPERATIONS = ("make", "make", "append", "append", "step", "fork", "truncate", "close", "generate", "save")


def recurrent_llm(name, n_slots=9, **options):
    backend = NativeBackend(tiny_file(name), tiny_spec(name), 300, 2, n_slots=n_slots)
    limits = Limits(max_tokens_per_step=20, checkpoint_bytes=N_CHECKPOINTS * backend.slot_bytes)
    return LLM(backend, byte_tokenizer(), fingerprint=lambda: name, limits=limits, **options)


class World:
    """Sequences of a model with few slots, and the same model without a cache."""

    def __init__(self, name, folder, seed):
        self.random, self.path, self.sequences = random.Random(seed), folder / "saved", []
        self.llm = recurrent_llm(name)
        self.plain = recurrent_llm(name, prefix_cache=False)
        self.saved = False

    def scratch(self, tokens):
        with self.plain.sequence(list(tokens)) as seq:
            return seq.logits.copy()

    def text(self):
        prefix = [5 + i * i % 53 for i in range(self.random.choice((10, 25, 40)))]
        return prefix + self.random.choices(range(60), k=self.random.randrange(4))

    def run(self, operation):
        if operation == "make" or not self.sequences:
            self.sequences.append(self.llm.sequence(self.text()))
            return
        seq = self.random.choice(self.sequences)
        if operation == "append":
            seq.append(self.random.choices(range(60), k=self.random.randrange(1, 9)))
        elif operation == "step":
            several = self.random.sample(self.sequences, min(3, len(self.sequences)))
            self.llm.step(several, temperature=0)
        elif operation == "fork":
            self.sequences.append(seq.fork())
        elif operation == "truncate":
            seq.truncate(self.random.randrange(1, len(seq) + 1))
        elif operation == "close":
            self.sequences.remove(seq)
            seq.close()
        elif operation == "save":
            if self.saved:
                self.sequences.append(self.llm.restore(self.path))
            else:
                seq.save(self.path)
            self.saved = not self.saved
        else:
            fused = {"loop": "fused"} if self.llm.backend.capabilities.fused else {}
            options = self.random.choice(({}, {"draft": "lookup"}, fused))
            self.llm.generate(seq, max_tokens=6, **options, **GREEDY)

    def check(self):
        self.llm.cells.check()
        seq = self.random.choice(self.sequences) if self.sequences else None
        if seq is not None:
            assert np.array_equal(seq.logits, self.scratch(seq.tokens))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_by_any_path(name, tmp_path, monkeypatch):
    monkeypatch.setattr(track, "MIN_REPLAY_TOKENS", 4)
    monkeypatch.setattr(track, "CHECKPOINT_TOKENS", 12)
    world = World(name, tmp_path, seed=3)
    n_full = 0
    for _ in range(120):
        if len(world.sequences) > 6:
            world.run("close")
        try:
            world.run(world.random.choice(OPERATIONS))
            world.check()
        except CacheFull:
            n_full += 1
    assert n_full < 60
    assert world.llm.metrics.cached_tokens > 0
    assert 0 < world.llm.cache.stats().checkpoints <= N_CHECKPOINTS
    world.llm.close()
    world.plain.close()
