"""The whole probe: on a container made of files, and here."""

import json
import math
import os

import pytest
from machines import GIB, MEASURED, Native

from stretto import _native, hardware
from stretto.errors import InvalidRequest, PullError
from stretto.hardware import cpu, speed
from stretto.hardware.speed import Rate
from stretto.weights.hub import Store


def test_probe(machine, native):
    found = hardware.probe()
    assert (found.cores_physical, found.cores_logical, found.cores_usable, found.cpu_quota) == (8, 16, 2, 2.0)
    assert (found.memory_total, found.memory_free) == (4 * GIB, 2 * GIB)
    assert (found.instruction_sets, found.kernels) == (("avx2",), "avx2")
    assert (found.bandwidth, found.integer_peak) == (MEASURED.bandwidth, MEASURED.integer_peak)
    assert hardware.usable_cores() == 2


def test_kernels_are_chosen_by_the_environment(machine, monkeypatch):
    assert hardware.probe(measure=False).kernel_sets == ("avx2", "portable")
    monkeypatch.setenv("STRETTO_KERNELS", "portable")
    assert hardware.probe(measure=False).kernels == "portable"
    monkeypatch.setenv("STRETTO_KERNELS", "amx")
    with pytest.raises(InvalidRequest, match=r"'amx' cannot run on this machine.*avx2, portable"):
        hardware.probe(measure=False)


def test_it_measures_once(machine, native, store_home):
    assert hardware.probe(measure=False).bandwidth is None
    assert native.asked == []
    first = hardware.probe()
    asked = list(native.asked)
    assert hardware.probe() == first == hardware.probe(measure=False)
    assert native.asked == asked
    hardware.probe(refresh=True)
    assert native.asked == asked * 2
    (key,) = json.loads((store_home / "hardware.json").read_text())
    assert key.startswith("EPYC 8, ")
    assert ", 2 cores, stretto " in key
    assert key.endswith(f", probe {speed.REVISION}")


def test_figures_of_another_way_to_measure_are_not_recalled(machine, native, monkeypatch):
    hardware.probe()
    asked = len(native.asked)
    monkeypatch.setattr(speed, "REVISION", speed.REVISION + 1)
    assert hardware.probe(measure=False).integer_peak is None
    assert hardware.probe().integer_peak == MEASURED.integer_peak
    assert len(native.asked) == 2 * asked


def test_other_machines_keep_their_figures(machine, tree):
    hardware.probe()
    tree({"sys/fs/cgroup/cpu.max": "400000 100000"})
    assert hardware.probe().integer_peak.rate == Rate(100.0, 400.0)
    tree({"sys/fs/cgroup/cpu.max": "200000 100000"})
    assert hardware.probe(measure=False).integer_peak.rate == Rate(100.0, 200.0)


def test_nowhere_to_remember(machine, store_home, monkeypatch):
    store_home.write_text("a file where the folder should be")
    assert hardware.probe().bandwidth == MEASURED.bandwidth

    def homeless():
        raise PullError("there is no home directory")

    monkeypatch.setattr(Store, "default", homeless)
    assert hardware.probe().bandwidth == MEASURED.bandwidth


def test_an_older_native_core(machine, monkeypatch, store_home):
    monkeypatch.setattr(hardware, "load_native", lambda: object())
    found = hardware.probe()
    assert (found.bandwidth, found.integer_peak, found.kernels) == (None, None, "portable")
    assert found.instruction_sets == ("avx2", "fma", "avx512vnni", "amx-int8")  # from the kernel's list
    assert not store_home.exists()


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_failure_is_not_remembered(machine, native, monkeypatch, store_home, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(native, "read_bandwidth", fail)
    found = hardware.probe()
    assert (found.bandwidth, found.integer_peak) == (None, MEASURED.integer_peak)
    assert not (store_home / "hardware.json").exists()


# -- this machine --


def test_this_machine():
    found = hardware.probe(measure=False)
    assert found.cpu
    assert 1 <= found.cores_usable <= found.cores_logical
    assert found.cores_usable == hardware.usable_cores()
    assert 0 < found.memory_free <= found.memory_total


def test_the_processor_agrees_with_the_kernel():
    names = _native.cpu_features()
    assert names == _native.cpu_features()
    known = set(cpu._FLAGS.values())
    assert set(names) <= known
    told = cpu.read().flags
    if told:  # what the kernel does not list cannot be used; tiles also need a permission
        assert set(names) <= set(told)
        assert {name for name in told if not name.startswith("amx")} <= set(names)


def test_every_way_to_multiply_runs():
    ways = _native.dot_instructions()
    assert ways[-1] == "portable"
    for way in ways:
        for threads in (1, 3):
            assert 0 < _native.integer_peak(way, threads, 0.001) < 1e9


def test_reading_runs():
    rates = _native.read_bandwidth(2**20 + 77, [1, 2, 4], 0.001)
    assert len(rates) == 3
    assert all(0 < rate < 1e6 for rate in rates)
    assert _native.read_bandwidth(2**20, [], 0.001) == []


def test_measuring_refuses_what_it_cannot_do():
    for threads, seconds in [(0, 0.1), (-1, 0.1), (10**6, 0.1), (1, 0.0), (1, -1.0), (1, math.nan), (1, 1e9)]:
        with pytest.raises(ValueError, match=r"threads|seconds"):
            _native.integer_peak("portable", threads, seconds)
        with pytest.raises(ValueError, match=r"threads|seconds"):
            _native.read_bandwidth(2**20, [threads], seconds)
    with pytest.raises(ValueError, match="no instruction 'abacus'"):
        _native.integer_peak("abacus", 1, 0.001)
    with pytest.raises(ValueError, match="too small"):
        _native.read_bandwidth(2**20, [5], 0.001)
    with pytest.raises(MemoryError):
        _native.read_bandwidth(2**62, [1], 0.001)


@pytest.fixture
def busy(tree, native, monkeypatch):
    """Says how many processor seconds others take during a measurement; none from the start."""
    state = {"seconds": 0.0, "total": 0}
    measure = native.read_bandwidth

    def read(*args):
        state["total"] += int(state["seconds"] * os.sysconf("SC_CLK_TCK"))
        tree({"proc/stat": f"cpu  {state['total']} 0 0 5 5 0 0 0 0 0\ncpu0 0"})
        return [rate / (1 + state["seconds"]) for rate in measure(*args)]

    tree({"proc/stat": "cpu  0 0 0 5 5 0 0 0 0 0\ncpu0 0"})
    monkeypatch.setattr(native, "read_bandwidth", read)
    monkeypatch.setattr(speed, "_SECONDS", 0.0)
    return state


def test_a_probe_on_a_busy_machine_is_marked_and_taken_again_later(machine, busy, monkeypatch):
    busy["seconds"] = 1000.0
    found = hardware.probe()
    assert found.was_busy
    asked = len(hardware.load_native().asked)
    assert hardware.probe() == found == hardware.probe(measure=False)
    assert len(hardware.load_native().asked) == asked
    busy["seconds"] = 0.0
    monkeypatch.setattr(speed, "RETAKE_SECONDS", 0.0)
    assert hardware.probe(measure=False).was_busy  # which never measures
    again = hardware.probe()
    assert (again.was_busy, again.bandwidth) == (False, MEASURED.bandwidth)
    asked = len(hardware.load_native().asked)
    assert hardware.probe() == again
    assert len(hardware.load_native().asked) == asked


def test_the_better_one_of_two_busy_probes_is_kept(machine, busy, monkeypatch):
    monkeypatch.setattr(speed, "RETAKE_SECONDS", 0.0)
    busy["seconds"] = 1000.0
    first = hardware.probe()
    busy["seconds"] = 2000.0
    assert hardware.probe() == first
    busy["seconds"] = 500.0
    better = hardware.probe()
    assert better.was_busy
    assert better.bandwidth.memory.all > first.bandwidth.memory.all


def test_a_machine_that_does_not_say_is_not_called_busy(machine, busy, tree, monkeypatch):
    monkeypatch.setattr(hardware.load_native(), "read_bandwidth", Native().read_bandwidth)
    for damage in ("", "cpu x", "cpu 1 2", "intr 1 2 3 4 5 6 7 8"):
        tree({"proc/stat": damage})
        assert not hardware.probe(refresh=True).was_busy
