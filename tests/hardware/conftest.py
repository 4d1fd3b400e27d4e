"""Fixtures of machines: their files, their native core."""

import sys
from pathlib import Path

import pytest

from stretto import hardware
from stretto.hardware import gpus, limits

sys.path.insert(0, str(Path(__file__).parent))
from machines import GIB, V2_MOUNT, Native, server


@pytest.fixture
def tree(tmp_path):
    """Makes a machine of files: its root."""

    def make(contents):
        for name, text in contents.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text) if isinstance(text, bytes) else path.write_text(f"{text}\n")
        return tmp_path / "root"

    return make


@pytest.fixture
def native(monkeypatch):
    made = Native()
    monkeypatch.setattr(hardware, "load_native", lambda: made)
    monkeypatch.setattr(gpus, "find", lambda: ())
    return made


@pytest.fixture
def machine(tree, native, monkeypatch):
    """A container with 2 of 8 cores and 4 GiB."""
    root = tree(
        server()
        | {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.max": "200000 100000",
            "sys/fs/cgroup/memory.max": str(4 * GIB),
            "sys/fs/cgroup/memory.current": str(2 * GIB),
        }
    )
    monkeypatch.setattr(hardware, "ROOT", root)
    monkeypatch.setattr(limits, "allowed_cpus", lambda: frozenset(range(16)))
    return root
