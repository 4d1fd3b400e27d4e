"""The pool: how many of its threads compute, and that nobody can tell from the result."""

import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

import stretto
from stretto import _native
from stretto.backends.native import NativeBackend
from stretto.cache.cells import Cells
from tiny_models import text_batch, tiny_file, tiny_spec

STEP = 0.005  # seconds that a pass takes


class Machine:
    """Time passes, and a governor chooses threads; `cores(threads)` says how many compute on average."""

    def __init__(self, most):
        self.governor = _native.ops.Governor(most)
        self.now = 0.0

    def work(self, seconds, cores, speed=None):
        """The numbers of threads that were used meanwhile; with a speed, runs are of one kind."""
        used, until = [], self.now + seconds
        while self.now < until:
            threads = self.governor.active
            used.append(threads)
            step = STEP if speed is None else STEP / speed(threads)
            self.now += step
            self.governor.add(step, step * cores(threads), self.now, kind=0 if speed is None else 1)
        return used


def quiet(threads):
    return 0.9 * threads


def test_all_threads_are_used_on_a_quiet_machine():
    assert set(Machine(2).work(5, quiet)) == {2}
    assert set(Machine(16).work(5, quiet)) == {16}


def test_fewer_threads_are_used_where_they_get_more_done():
    machine = Machine(2)
    used = machine.work(10, lambda threads: 0.98 if threads == 1 else 0.5)
    assert used[-1] == 1
    assert used.count(2) < 0.1 * len(used)  # also with the trials whether it is quiet again


def test_all_threads_come_back_when_the_machine_is_quiet_again():
    machine = Machine(8)
    machine.work(10, lambda threads: threads * 0.9 if threads <= 3 else 1.0)
    assert machine.governor.active <= 3
    assert machine.work(10, quiet)[-1] == 8


def test_as_many_threads_as_there_are_free_cores():
    used = Machine(16).work(20, lambda threads: 0.95 * threads if threads <= 12 else 0.4 * threads)
    assert sorted(used)[len(used) // 2] == 12


def test_more_threads_stay_where_fewer_get_less_done():
    """Small models wait often and still gain from a second thread."""
    used = Machine(2).work(10, lambda threads: 1.2 if threads == 2 else 1.0)
    assert used.count(2) > 0.9 * len(used)


def test_threads_that_look_idle_and_are_needed_stay():
    """Six of eight threads that wait for memory compute for as many cores, and get less done."""
    used = Machine(8).work(10, lambda threads: 4.5, lambda threads: threads / 8)
    assert used.count(8) > 0.7 * len(used)


def test_fewer_threads_that_are_faster_are_kept():
    used = Machine(8).work(10, lambda threads: 0.4 * threads, lambda threads: 1.0 if threads <= 4 else 0.5)
    assert sorted(used)[len(used) // 2] <= 4


def test_a_pause_now_and_then_is_no_reason_for_fewer_threads():
    governor, now = _native.ops.Governor(2), 0.0
    for number in range(1000):  # runs of 5 ms; of every 40 one takes 75
        seconds = 0.075 if number % 40 == 0 else 0.005
        now += seconds
        governor.add(seconds, 0.0095, now, kind=1)
        assert governor.active == 2


def test_runs_of_another_kind_are_not_compared():
    governor, now = _native.ops.Governor(4), 0.0
    for number in range(400):  # alternately slow and fast, by their work and not by the threads
        now += 0.05
        governor.add(0.05, 0.05 * 2.0, now, kind=1 + number % 2)
    assert governor.active == 4


def test_one_thread_is_one_thread():
    machine = Machine(1)
    assert set(machine.work(1, lambda threads: 0.2)) == {1}


@contextmanager
def busy_processes(count):
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def logits_in_chunks(threads, text, sizes):
    """All rows of a text, and the numbers of threads that computed them."""
    backend, cells = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 2048, threads, "f16"), Cells(2048)
    rows, used, start = [], set(), 0
    for size in sizes:
        batch = text_batch(text[start : start + size], start)
        batch.place(cells)
        rows.append(backend.forward(batch).copy())
        used.add(backend.active_threads)
        start += size
    return np.concatenate(rows), used


@pytest.mark.parametrize("size", [1, 24])
def test_the_same_bits_on_a_busy_machine(size):
    """Whatever the number of threads changes to, between passes and between layers."""
    text = np.random.default_rng(size).integers(0, 96, 768).tolist()
    sizes = [size] * (len(text) // size)
    alone, used = logits_in_chunks(1, text, sizes)
    assert used == {1}
    with busy_processes(3):
        for threads in (2, 4):
            found, used = logits_in_chunks(threads, text, sizes)
            assert used <= set(range(1, threads + 1))
            np.testing.assert_array_equal(found, alone)


def test_the_metrics_tell_how_many_threads_compute(smollm2_path):
    with stretto.load(smollm2_path, threads=2, cells=64) as llm:
        llm.generate("Once", max_tokens=2)
        assert llm.metrics.threads == llm.backend.active_threads
        assert llm.metrics.as_dict()["threads"] in (1, 2)
