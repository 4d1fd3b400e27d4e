"""Exceptions that come from outside, as Ctrl-C does, at every byte code of the cache and of a step."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from interrupts import interrupted_everywhere
from stretto.cache.cells import Cells
from stretto.cache.prefix import PrefixCache
from stretto.cache.slots import Slots
from stretto.testing import mock_llm


def snapshot(cells):
    return {
        sequence: (cells.view(sequence).tolist(), cells.sequence_positions(sequence).tolist())
        for sequence in cells.sequences
    }


def filled(slots=False):
    cells = Cells(40, Slots(8, 4) if slots else None)
    for sequence, n in ((1, 6), (2, 3)):
        if slots:
            cells.slots.advance([((sequence,), n)])
        cells.place(list(range(n)), list(range(n)), [(sequence,)] * n)
    cells.copy(1, 3)
    return cells


EDITS = {
    "place": lambda cells: cells.place([7, 8], [6, 7], [(1,), (1, 2)]),
    "place before the end": lambda cells: cells.place([7, 8, 9], [2, 2, 9], [(1,), (2,), (1,)]),
    "append": lambda cells: cells.append([7, 8, 9], [1, 2, 9]),
    "append many": lambda cells: cells.append([7] * 12, [1, 2, *range(10, 20)]),
    "reserve": lambda cells: cells.reserve(2, 5),
    "copy": lambda cells: cells.copy(1, 2, 4),
    "copy to a new one": lambda cells: cells.copy(1, 9),
    "copy to several": lambda cells: cells.copy_to_each(1, [8, 9]),
    "remove several": lambda cells: cells.remove_each([2, 3]),
    "remove from the middle": lambda cells: cells.remove(1, 2, 4),
    "remove the end": lambda cells: cells.remove(2, 1),
    "remove all": lambda cells: cells.remove(2),
    "shift": lambda cells: cells.shift(2, 1, None, 5),
    "unshare": lambda cells: cells.unshare(1, 1, 5),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_interrupted_edit_is_done_or_undone(edit):
    before, done = snapshot(filled()), filled()
    edit(done)
    after = snapshot(done)

    def check(cells):
        cells.remove(99)  # the next edit, of nothing
        cells.check()
        assert snapshot(cells) in (before, after)
        cells.clear()
        assert cells.n_free == len(cells)

    assert interrupted_everywhere(filled, edit, check) > 5


def test_what_an_interrupted_edit_made_is_not_copied(monkeypatch):
    cells = filled()

    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cells, "_end", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cells.place([1, 2], [0, 1], [(50,)] * 2)
    cells.copy_to_each(50, [98, 99])
    cells.check()
    assert cells.count(50) == cells.count(98) == 0


STATE_EDITS = {
    "copy": lambda cells: cells.copy(1, 9),
    "remove all": lambda cells: cells.remove(1),
    "remove the end": lambda cells: cells.remove(2, 2),
    "rewind": lambda cells: cells.rewind(1, 3),
}


@pytest.mark.parametrize("edit", STATE_EDITS.values(), ids=STATE_EDITS)
def test_cells_and_states_stay_together(edit):
    def check(cells):
        cells.repair(anyway=True)
        cells.check()
        cells.clear()
        assert (cells.n_free, cells.slots.n_free) == (40, 8)

    assert interrupted_everywhere(lambda: filled(slots=True), edit, check) > 5


def test_an_interrupted_prefix_cache_finds_what_is_there():
    def make():
        cells = filled()
        prefixes = PrefixCache(cells)
        prefixes.park(1, range(6))
        return cells, prefixes

    def act(made):
        _, prefixes = made
        prefixes.park(2, range(3, 6))
        prefixes.evict(36)
        prefixes.clear()

    def check(made):
        cells, prefixes = made
        cells.repair(anyway=True)
        prefixes.repair()
        cells.check()
        for entry in prefixes.entries():
            assert prefixes.find(entry.items, entry.domain) == (entry.id, len(entry.items))
            assert cells.count(entry.id) == len(entry.items)

    assert interrupted_everywhere(make, act, check) > 20


# An interrupt within a finaliser is printed, and goes no further.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_cell_is_lost_when_generating_is_interrupted():
    llm = mock_llm("abcdefgh", cells=64)
    text = llm.generate("The cat", temperature=0).text

    def act(llm):
        llm.generate("The cat", temperature=0, max_tokens=4)
        with llm.sequence("The dog") as sequence:
            sequence.step(temperature=0)
            sequence.fork().close()
            sequence.truncate(3)

    def check(llm):
        llm.cells.check()
        assert llm.generate("The cat", temperature=0).text == text

    assert interrupted_everywhere(lambda: llm, act, check, step=61) > 500
    llm.cache.clear()
    assert (llm.cells.n_free, llm.metrics.running, llm.metrics.waiting) == (64, 0, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_cell_is_lost_when_a_fork_or_a_cut_is_interrupted():
    llm = mock_llm("abcdefgh", cells=64)

    def act(sequence):
        sequence.fork().close()
        sequence.truncate(1)

    def check(sequence):
        llm.cells.check()
        assert sequence.tokens in ([97, 98, 99], [97])
        cells = llm.engine.cells
        placed = cells.tokens[cells.view(sequence.id)].tolist()
        assert placed == sequence.tokens[: len(placed)]
        sequence.close()
        llm.cells.check()

    def make():
        sequence = llm.sequence("abc")
        assert sequence.logits is not None  # computed: all of its tokens have cells
        return sequence

    assert interrupted_everywhere(make, act, check) > 200
    llm.cache.clear()
    assert llm.cells.n_free == 64


def test_the_prefix_cache_never_has_cells_that_were_not_computed():
    llm = mock_llm(lambda seen: ord("a") + len(seen) % 26, cells=64)
    fresh = mock_llm(lambda seen: ord("a") + len(seen) % 26, cells=64, prefix_cache=False)
    expected = fresh.generate("xyz", temperature=0, max_tokens=5).text

    def check(llm):
        assert llm.generate("xyz", temperature=0, max_tokens=5).text == expected
        llm.cache.clear()

    def act(llm):
        llm.generate("xyz", temperature=0, max_tokens=5)

    assert interrupted_everywhere(lambda: llm, act, check, step=37) > 200


ENDING = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import stretto
from stretto.backends.native import NativeBackend
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.testing import byte_tokenizer
from stretto.weights.gguf import GGUF

file = GGUF(sys.argv[2])
llm = LLM(NativeBackend(file, read_spec(file), 64, 3), byte_tokenizer())
started = threading.Semaphore(0)

def generate():
    while True:
        llm.generate([1, 2, 3], max_tokens=30, temperature=0, ignore_eos=True)
        started.release()

for _ in range(4):
    threading.Thread(target=generate, daemon=True).start()
for _ in range(4):
    started.acquire()
if sys.argv[3] == "interrupt":
    import os, signal
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["end", "interrupt"])
def test_exit_while_threads_generate(how):
    from tiny_models import FOLDER

    for _ in range(3):
        command = [sys.executable, "-c", ENDING, str(FOLDER.parents[1]), str(FOLDER / "llama.gguf"), how]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ran.returncode == (0 if how == "end" else -signal.SIGINT), ran.stderr[-2000:]
        assert "terminate called" not in ran.stderr


def test_the_test_itself_interrupts():
    hits = []

    def act(cells):
        cells.remove(1)
        hits.append(np.array(1))

    interrupted_everywhere(filled, act, lambda cells: None)
    assert len(hits) == 2  # all runs but the first, which no one interrupts, and the last were cut short
