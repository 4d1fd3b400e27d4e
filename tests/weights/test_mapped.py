"""Files that are cut while they are mapped: an error for who uses them, and nothing for the others."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from stretto.errors import ModelError
from stretto.weights.gguf import GGUF
from stretto.weights.mapped import GuardedMap, broken_mappings, check_maps, list_maps
from stretto.weights.writer import write_gguf

PAGE = 65_536  # at least one, on any machine


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "model.gguf"
    write_gguf(made, {"general.architecture": "none"}, {"x": np.ones((64, PAGE), np.float32)})
    return made


def cut(path, nbytes):
    with path.open("r+b") as file:
        file.truncate(nbytes)


def test_a_tensor_of_a_file_that_was_cut_is_an_error_not_a_crash(path):
    with GGUF(path) as file:
        before, data = broken_mappings(), file.tensors["x"].data
        file.check()
        cut(path, 3 * PAGE)
        assert data.reshape(-1)[-PAGE:].max() == 0  # it would have ended the process
        assert broken_mappings() == before + 1
        with pytest.raises(ModelError, match=r"model\.gguf: the file was cut or overwritten"):
            file.check()


def test_other_files_are_not_concerned(path, tmp_path):
    other = tmp_path / "other.gguf"
    write_gguf(other, {"general.architecture": "none"}, {"x": np.ones((2, PAGE), np.float32)})
    with GGUF(path) as file, GGUF(other) as healthy:
        cut(path, 4096)
        file.tensors["x"].data.reshape(-1)[-1]
        healthy.check()
        check_maps(list_maps([other]))
        assert [one.path for one in list_maps([path])] == [path]
        assert healthy.tensors["x"].dequantize().min() == 1


def test_a_guard_ends_with_its_mapping(path):
    with path.open("rb") as file:
        mapped = GuardedMap.open(file.fileno(), path)
    assert list(list_maps([path])) == [mapped]
    del mapped
    assert not list(list_maps([path]))


FOREIGN = """
import mmap, sys
from pathlib import Path
from stretto.weights.mapped import GuardedMap
path = Path(sys.argv[1])
handle = path.open("rb")
guarded = GuardedMap.open(handle.fileno(), path)
other = path.with_name("foreign")
other.write_bytes(bytes(200000))
with other.open("r+b") as file:
    foreign = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    file.truncate(0)
foreign[150000]
"""


def test_a_fault_elsewhere_still_ends_the_process(path):
    ran = subprocess.run([sys.executable, "-c", FOREIGN, str(path)], capture_output=True, timeout=120)
    assert ran.returncode == -signal.SIGBUS


CHAINED = (
    """
import faulthandler, sys
faulthandler.enable()
"""
    + FOREIGN
)


def test_a_handler_that_was_there_before_still_runs(path):
    ran = subprocess.run([sys.executable, "-c", CHAINED, str(path)], capture_output=True, timeout=120)
    assert ran.returncode == -signal.SIGBUS
    assert b"Fatal Python error: Bus error" in ran.stderr
