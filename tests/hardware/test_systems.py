"""Processors, macOS and GPUs, as their systems describe them."""

import os
import sys
import time

import pytest
from machines import server

from stretto import hardware
from stretto.hardware import cpu, gpus, limits, mac
from stretto.hardware.cpu import Cache
from stretto.hardware.gpus import Gpu


def test_cores_without_sys(tree):
    root = tree({"proc/cpuinfo": server(cores=4)["proc/cpuinfo"]})
    found = cpu.read(root)
    assert (found.cores, found.threads, found.caches) == (4, 8, ())
    assert cpu.cores_among(frozenset({0, 4}), root) == 1


def test_arm_tells_numbers(tree):
    block = "processor : 0\nFeatures : fp asimd asimdhp asimddp i8mm\nCPU implementer : {}\nCPU part : {}"
    neoverse = cpu.read(tree({"proc/cpuinfo": block.format("0x41", "0xd0c")}))
    assert (neoverse.vendor, neoverse.name, neoverse.cores) == ("ARM", "Neoverse N1", None)
    assert neoverse.flags == ("neon", "dotprod", "i8mm", "fp16")
    strange = cpu.read(tree({"proc/cpuinfo": block.format("0x99", "0xabc")}))
    assert (strange.vendor, strange.name) == ("maker 0x99", "maker 0x99 part 0xabc")
    assert cpu.read(tree({"proc/cpuinfo": block.format("?", "?")})).vendor is None


@pytest.mark.parametrize("written", ["", "-", "0-", "a-b", "3,,4", "0-99999999999", "²", "0-1-2"])
def test_lists_of_processors_that_are_none(written):
    assert limits.cpu_list(written) == frozenset()


# -- macOS --

SYSCTL = """machdep.cpu.brand_string: Apple M2 Pro
hw.physicalcpu: 10
hw.logicalcpu: 10
hw.memsize: 17179869184
hw.l1dcachesize: 65536
hw.l2cachesize: 4194304
hw.perflevel0.physicalcpu: 6
hw.perflevel0.l1dcachesize: 131072
hw.perflevel0.l2cachesize: 16777216
"""
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            300000.
Pages inactive:                           20000.
Pages speculative:                          500.
Pages purgeable:                             50.
"Translation faults":                 123456789.
"""


def test_a_mac():
    facts = mac.parse_facts(SYSCTL)
    found = mac.cpu(facts)
    assert (found.name, found.vendor, found.cores, found.threads) == ("Apple M2 Pro", "Apple", 10, 10)
    assert found.caches == (Cache("L1d", 131072, 10), Cache("L2", 16777216, 1))
    assert mac.usable_cores(facts) == 6
    assert mac.parse_free(VM_STAT) == 30550 * 16384


def test_a_mac_that_tells_nothing():
    facts = mac.parse_facts("sysctl: unknown oid\nhw.physicalcpu: many")
    assert mac.cpu(facts).threads == os.cpu_count()
    assert mac.usable_cores(facts) is None
    assert mac.parse_free("") is None
    assert mac.read_output("no-such-program-anywhere") == ""


def test_probe_on_a_mac(monkeypatch, native):
    monkeypatch.setattr(hardware, "_is_mac", lambda: True)
    monkeypatch.setattr(mac, "read_output", lambda program, *keys: SYSCTL if program == "sysctl" else VM_STAT)
    found = hardware.probe()
    assert (found.cpu, found.cores_usable, found.memory_total) == ("Apple M2 Pro", 6, 2**34)
    assert hardware.usable_cores() == 6


# -- GPUs --


def test_devices_of_nvidia():
    output = "NVIDIA H200, 143771, 143000, 570.1\nNVIDIA GB10, [N/A], [N/A], 580.2\n\nfailed\nA, B, 1, 2, 3\n"
    assert gpus.parse(output) == (
        Gpu("NVIDIA H200", 143771 * 2**20, 143000 * 2**20, "570.1"),
        Gpu("NVIDIA GB10", None, None, "580.2"),
        Gpu("A, B", 2**20, 2 * 2**20, "3"),
    )


def test_no_program_a_failing_one_and_a_slow_one():
    assert gpus.find(("no-such-program-anywhere",)) == ()
    failing = "print('NVIDIA X, 1, 1, 1'); raise SystemExit(9)"
    assert gpus.find((sys.executable, "-c", failing), patience=60) == ()
    working = "print('NVIDIA X, 1, 1, 1')"
    assert len(gpus.find((sys.executable, "-c", working), patience=60)) == 1
    start = time.monotonic()
    assert gpus.find((sys.executable, "-c", "import time; time.sleep(100)"), patience=0.1) == ()
    assert time.monotonic() - start < 50
