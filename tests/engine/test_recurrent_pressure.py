"""Random operations on a recurrent model with few cells and few slots: every token is that of the chain.

The operations are those of test_cache_pressure.py, with others that states make interesting: drafts, the
fused loop, beams, passes that fail. Edits without an exact meaning are refused and change nothing.
"""

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from pressure import BURST, CELLS, CONTEXT, GREEDY, WEIGHTS, Thread, World
from recurrent_mock import check, greedy, recurrent_llm
from stretto import Batch, Limits
from stretto.engine import track
from stretto.errors import CacheFull

SLOTS, CHECKPOINTS = 12, 4


class RecurrentWorld(World):
    """A model with recurrent layers, and one without a cache to compare with."""

    def __init__(self, folder):
        super().__init__(folder)
        limits = Limits(
            max_running=6, max_queue=12, max_tokens_per_step=48, checkpoint_bytes=16 * CHECKPOINTS
        )
        self.llm = recurrent_llm(CELLS, CONTEXT, SLOTS, limits=limits)
        self.plain = recurrent_llm(context_length=CONTEXT, slots=64, prefix_cache=False)

    def verify(self, deep):
        """Nobody else is at work: everything must add up."""
        llm, runner = self.llm, self.llm.engine.runner
        check(llm)
        assert llm.cache.stats().checkpoints <= CHECKPOINTS
        for entry in runner.prefixes.entries():
            assert runner.cells.tokens[runner.cells.view(entry.id)].tolist() == list(entry.items)
        for sequence in self.sequences:
            if sequence.closed:
                continue
            assert sequence.positions == list(range(len(sequence)))
            placed = runner.cells.tokens[runner.cells.view(sequence.id)].tolist()
            assert placed == sequence.tokens[: len(placed)]
            if deep and len(sequence):
                with suppress(CacheFull):
                    assert sequence.logits.argmax() == greedy(sequence.tokens, 1)[0]

    def end(self):
        super().end()
        assert self.llm.cache.stats().slots_free == SLOTS


class RecurrentThread(Thread):
    """One thread's share of the operations."""

    def follows(self, prompt, result):
        assert result.tokens == greedy(prompt, len(result.tokens))

    def generate_long(self):
        prompt = self.text()
        options = {"draft": "lookup"} if self.random.random() < 0.5 else {"loop": "fused"}
        self.follows(prompt, self.llm.generate(prompt, max_tokens=CONTEXT, **options, **GREEDY))

    def generate_several(self):
        n, prompt = self.random.randrange(1, 4), self.text()
        assert len(self.llm.generate(prompt, n=n, max_tokens=4)) == n
        found = self.llm.generate(prompt, beams=3, max_tokens=3)
        if found.stop_reason != "cache full":
            assert found.tokens == self.world.plain.generate(prompt, beams=3, max_tokens=3).tokens

    def continue_one(self):
        sequence, draft = self.one, self.random.choice((None, "lookup"))
        with self.llm.engine.lock:  # or another thread may change it before it runs
            before = sequence.tokens
            self.follows(before, self.llm.generate(sequence, draft=draft, **self.options()))

    def forward(self):
        batch = Batch()
        sequence = self.id()
        tokens = self.random.choices(b"abcd", k=self.random.randrange(1, 8))
        start = len(self.llm.cells.view(sequence))
        batch.extend(tokens, min(start, CONTEXT - 9), (sequence,), logits=True)
        assert len(self.llm.forward(batch)) > 0

    def copy_cells(self):
        self.llm.cells.copy(self.id(), self.id())

    def remove_range(self):
        self.llm.cells.remove(self.id(), self.random.randrange(CONTEXT))

    def remove_cells(self):
        sequence = self.id()
        view = self.llm.cells.view(sequence)
        self.llm.cells.remove_cells(sequence, view[len(view) - self.random.randrange(3) :])

    def fail(self):
        """The next pass fails at some row; whoever runs it may do so again."""
        self.llm.backend.failures = [self.random.randrange(4)]
        try:
            with suppress(MemoryError):
                self.one.step(**GREEDY)
        finally:
            self.llm.backend.failures = []


OPERATIONS = WEIGHTS | {"continue_one": 20.0, "fail": 10.0}


@pytest.mark.slow
@pytest.mark.parametrize(("n_threads", "n_bursts"), [(1, 6), (3, 6)])
def test_a_small_cache_with_few_slots_under_pressure(tmp_path, monkeypatch, n_threads, n_bursts):
    seed = int(os.environ.get("STRETTO_PRESSURE_SEED") or time.time_ns() % 1_000_000)
    print(f"STRETTO_PRESSURE_SEED={seed}")  # shown if it fails
    monkeypatch.setattr(track, "MIN_REPLAY_TOKENS", 4)
    monkeypatch.setattr(track, "CHECKPOINT_TOKENS", 16)
    operations = dict(OPERATIONS)
    if n_threads > 1:
        del operations["fail"]  # it would hit others
    world = RecurrentWorld(tmp_path)
    threads = [RecurrentThread(world, f"{seed} {index}", operations) for index in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool:
        for burst in range(n_bursts):
            done = [pool.submit(thread.run, BURST // n_threads) for thread in threads]
            for future in done:
                future.result()
            world.verify(deep=burst % 2 == 1)
    world.end()
    counts = sum((thread.counts for thread in threads), Counter())
    print(dict(counts))
    assert counts["Unsupported"] > 10
    assert counts["CacheFull"] > 10
    assert world.llm.metrics.cached_tokens > 1000
