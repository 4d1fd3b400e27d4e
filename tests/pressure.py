"""Random operations on a small cache, as users and their threads make them, for tests that run many."""

import gc
import random
import re
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

from stretto import Batch, Limits
from stretto.engine.sequence import track_in
from stretto.errors import CacheFull, InvalidRequest, StrettoError
from stretto.testing import mock_llm

CELLS, CONTEXT, BURST = 300, 120, 1000
BY_HAND = range(4)  # sequence ids for batches made by hand
BEGINNINGS = [bytes([65 + k]) * n for k in range(3) for n in (5, 20, 60)]
WRONG = [(-1, 5), (5, 2), (0, -1), (1.5, 2), (True, 2), ("0", 2), (2**70, 1), (None, 1), ([1], 2)]
GREEDY = {"temperature": 0}


def script(seen):
    """What comes next depends on all that is seen and on its order; few tokens, so that texts meet again."""
    return 97 + (len(seen) + 3 * seen[0] + 5 * seen[-1] + seen[len(seen) // 2]) % 4


class World:
    """A model and what some threads have in their hands, which all of them use."""

    def __init__(self, folder):
        limits = Limits(max_running=6, max_queue=12, max_tokens_per_step=48)
        self.llm = mock_llm(script, cells=CELLS, context_length=CONTEXT, limits=limits)
        self.folder = folder
        self.sequences, self.streams, self.pins, self.files = [], [], [], []

    def verify(self, deep):
        """Nobody else is at work: everything must add up."""
        llm, engine = self.llm, self.llm.engine
        llm.cells.check()
        cells = engine.cells
        used = cells.positions >= 0
        assert np.array_equal(llm.backend.tokens[used], cells.tokens[used])
        for entry in engine.runner.prefixes.entries():
            assert cells.tokens[cells.view(entry.id)].tolist() == list(entry.items)
            assert cells.sequence_positions(entry.id).tolist() == list(range(len(entry.items)))
        for sequence in self.sequences:
            if sequence.closed:
                assert not cells.count(sequence.id) or sequence.id in engine.runner.prefixes
                continue
            assert sequence.n_pending >= 0
            placed = cells.tokens[cells.view(sequence.id)].tolist()
            assert placed == sequence.tokens[: len(placed)]
            n = len(track_in(engine, sequence).exact_tokens())
            assert sequence.positions[:n] == list(range(n))
            if deep and len(sequence):
                with suppress(CacheFull):
                    assert sequence.logits.argmax() == script(sequence.tokens)

    def end(self):
        """Let go of everything; the cache must be empty then."""
        for sequence in self.sequences:
            sequence.close()
        for stream in self.streams[::2]:
            stream.cancel()
        for pin in self.pins:
            pin.release()
        self.streams.clear()  # half of them are merely forgotten
        gc.collect()
        for sequence in BY_HAND:
            self.llm.cells.remove(sequence)
        assert self.llm.cache.stats().held == 0
        assert self.llm.cache.stats().pinned == 0
        self.llm.cache.clear()
        assert self.llm.cells.n_used == 0
        self.llm.cells.check()


class Thread:
    """One thread's share of the operations, by its own random numbers."""

    def __init__(self, world, seed, weights=None):
        self.world, self.llm = world, world.llm
        self.weights = weights or WEIGHTS
        self.random = random.Random(seed)
        self.counts = Counter()

    def run(self, n):
        for name in self.random.choices(list(self.weights), self.weights.values(), k=n):
            self.counts[name] += 1
            try:
                getattr(self, name)()
            except StrettoError as error:
                self.counts[type(error).__name__] += 1

    def pick(self, several):
        found = list(several)
        if not found:
            raise InvalidRequest("there is none")
        return self.random.choice(found)

    def take(self, several):
        found = self.pick(several)
        if found in several:
            try:
                several.remove(found)
            except ValueError:
                raise InvalidRequest("another thread was faster") from None
        return found

    @property
    def one(self):
        return self.pick(self.world.sequences)

    def text(self):
        more = bytes(self.random.choices(b"abcd", k=self.random.randrange(8)))
        return list(self.random.choice(BEGINNINGS) + more)

    def span(self, most=CONTEXT):
        start = self.random.randrange(most)
        return start, start + self.random.randrange(20)

    # -- sequences --

    def make(self):
        if len(self.world.sequences) < 12:
            self.world.sequences.append(self.llm.sequence(self.text(), seed=self.random.randrange(9)))

    def fork(self):
        if len(self.world.sequences) < 12:
            self.world.sequences.append(self.one.fork())

    def append(self):
        self.one.append(bytes(self.random.choices(b"abcd", k=self.random.randrange(6))))

    def step(self):
        self.one.step(**GREEDY)

    def step_together(self):
        several = {self.one for _ in range(self.random.randrange(1, 5))}
        self.llm.step(several, temperature=self.random.choice((0, 1)))

    def logits(self):
        assert self.one.logits.shape == (258,)

    def read(self):
        sequence = self.one
        assert sequence.tokens is not None
        assert sequence.positions is not None
        assert repr(sequence)
        assert len(sequence.text) >= 0

    def remove(self):
        self.one.remove(*self.span(), close=self.random.random() < 0.5)

    def truncate(self):
        self.one.truncate(self.random.randrange(CONTEXT))

    def shift(self):
        start, stop = self.span()
        self.one.shift(start, self.random.choice((stop, None)), by=self.random.randrange(-9, 10))

    def empty(self):
        self.one.clear()

    def close(self):
        self.take(self.world.sequences).close(park=self.random.random() < 0.8)

    def close_and_use(self):
        sequence = self.take(self.world.sequences)
        sequence.close()
        use = self.random.choice(("step", "fork", "clear", "append", "save", "remove", "step_llm", "pin"))
        with pytest.raises(InvalidRequest):
            {
                "step": lambda: sequence.step(**GREEDY),
                "fork": sequence.fork,
                "clear": sequence.clear,
                "append": lambda: sequence.append(b"a"),
                "save": lambda: sequence.save(self.world.folder / "never"),
                "remove": lambda: self.llm.cells.remove(sequence.id),
                "step_llm": lambda: self.llm.step([sequence], **GREEDY),
                "pin": lambda: self.llm.cache.pin(sequence),
            }[use]()

    def forget(self):
        self.take(self.world.sequences)

    def wrong(self):
        sequence, wrong = self.one, self.random.choice(WRONG)
        changes = (
            lambda: sequence.remove(*wrong),
            lambda: sequence.shift(*wrong, by=1),
            lambda: self.llm.cells.remove(sequence.id, *wrong),
            lambda: self.llm.cells.copy(sequence.id, 0, *wrong),
        )
        with pytest.raises(InvalidRequest):
            self.random.choice(changes)()

    # -- requests --

    def options(self):
        return {"max_tokens": self.random.randrange(1, 6), **GREEDY}

    def generate(self):
        prompt = self.text()
        self.follows(prompt, self.llm.generate(prompt, **self.options()))

    def generate_list(self):
        prompts = [self.text() for _ in range(3)]
        for prompt, result in zip(prompts, self.llm.generate(prompts, **self.options()), strict=True):
            self.follows(prompt, result)

    def generate_several(self):
        n = self.random.randrange(1, 4)
        assert len(self.llm.generate(self.text(), n=n, max_tokens=4)) == n
        self.llm.generate(self.text(), beams=2, max_tokens=3)

    def generate_long(self):
        self.llm.generate(self.text(), max_tokens=CONTEXT, overflow="shift", keep=4, **GREEDY)

    def follows(self, prompt, result):
        """Each token is the one that follows from all before it: no wrong cell was ever seen."""
        for index, token in enumerate(result.tokens):
            assert token == script([*prompt, *result.tokens[:index]])

    def start_stream(self):
        if len(self.world.streams) < 4:
            self.world.streams.append(self.llm.stream(self.text(), max_tokens=CONTEXT, **GREEDY))

    def advance_stream(self):
        stream = self.pick(self.world.streams)
        for _ in range(3):
            next(stream, None)

    def cancel_stream(self):
        self.take(self.world.streams).cancel()

    def forget_stream(self):
        self.take(self.world.streams)

    def score(self):
        assert len(self.llm.score([*self.text(), 97, 98])) > 0

    # -- the cache --

    def pin(self):
        if len(self.world.pins) < 3:
            sequence = self.one
            if len(sequence) < 40:
                self.world.pins.append(self.llm.cache.pin(sequence))

    def release(self):
        self.take(self.world.pins).release()

    def forget_parked(self):
        self.llm.cache.clear()

    def stats(self):
        stats = self.llm.cache.stats()
        assert stats.cells == CELLS == stats.free + stats.held + stats.parked

    # -- cells by hand --

    def id(self):
        return self.random.choice(BY_HAND) if self.random.random() < 0.5 else self.one.id

    def copy_cells(self):
        self.llm.cells.copy(self.id(), self.id(), *self.span())

    def remove_range(self):
        self.llm.cells.remove(self.id(), *self.span())

    def remove_all(self):
        self.llm.cells.remove(self.random.choice(BY_HAND))

    def remove_cells(self):
        sequence = self.id()
        view = self.llm.cells.view(sequence)
        self.llm.cells.remove_cells(sequence, view[: self.random.randrange(3)])

    def keep(self):
        self.llm.cells.keep(self.id())

    def clear(self):
        self.llm.cells.clear()

    def forward(self):
        batch = Batch()
        for _ in range(self.random.randrange(1, 3)):
            tokens = self.random.choices(b"abcd", k=self.random.randrange(1, 8))
            batch.extend(tokens, self.random.randrange(CONTEXT - 9), {self.id(), self.id()}, logits=True)
        assert len(self.llm.forward(batch)) > 0

    def look(self):
        sequence = self.id()
        assert len(self.llm.cells.positions(sequence)) >= 0
        assert len(self.llm.cells.tokens(sequence)) >= 0
        assert self.llm.cells.members(self.random.randrange(CELLS)) is not None
        assert sequence is not None
        assert 0 <= self.llm.cells.n_used <= CELLS

    # -- files --

    def save(self):
        path = self.world.folder / f"{self.random.randrange(8)}.safetensors"
        self.one.save(path)
        self.world.files.append(path)

    def restore(self):
        if len(self.world.sequences) < 12:
            self.world.sequences.append(self.llm.restore(self.pick(self.world.files)))


# How often each comes, about.
WEIGHTS = {
    name: float(weight)
    for name, weight in re.findall(
        r"(\w+) ([\d.]+)",
        """
        make 60, fork 50, append 120, step 100, step_together 50, logits 50, read 20, remove 40, truncate 20,
        shift 30, empty 5, close 40, close_and_use 10, forget 20, wrong 20,
        generate 8, generate_list 2, generate_several 2, generate_long 1, score 2,
        start_stream 6, advance_stream 20, cancel_stream 3, forget_stream 3,
        pin 8, release 8, forget_parked 2, stats 10,
        copy_cells 30, remove_range 20, remove_all 10, remove_cells 10, keep 1, clear 1,
        forward 20, look 10, save 1, restore 1.5
        """,
    )
}
