"""Where weights are while a model runs: by free memory, and never in more than there is."""

import ctypes
import mmap
import os
import shutil

import pytest

import stretto
from random_weights import random_weights
from stretto import _native
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest, ModelError
from stretto.models import read_spec
from stretto.weights.formats import READABLE
from stretto.weights.gguf import GGUF
from stretto.weights.memory import PACKED_BITS, RESERVE_BYTES, Memory, choose_placement
from tiny_models import text_logits

GB = 10**9


def need(weights=4 * GB, cell=100_000):
    return Memory({"Q8_0": weights}, 4096, ((1, cell // 2),))


def test_weights_are_packed_where_they_fit_beside_the_cache():
    assert choose_placement("auto", need(), "f16", 1000, 8 * GB).repack
    assert not choose_placement("auto", need(), "f16", 1000, 4 * GB).repack
    edge = 4 * GB + need().cache_bytes("f16", 1000) + RESERVE_BYTES
    assert choose_placement("auto", need(), "f16", 1000, edge).repack
    assert not choose_placement("auto", need(), "f16", 1000, edge - 1).repack


def test_the_choice_says_its_numbers():
    assert str(choose_placement("auto", need(), "f16", 1, 8 * GB)) == "weights packed: 4.0 GB of 8.0 GB free"
    mapped = str(choose_placement("auto", need(), "f16", 1, 2 * GB))
    assert mapped == "weights read from the file: packed they would take 4.0 GB of 2.0 GB free"


@pytest.mark.parametrize("repack", [True, False])
def test_what_was_asked_for_is_done(repack):
    assert choose_placement(repack, need(), "f16", 1, 8 * GB).repack is repack
    assert choose_placement(repack, need(), "f16", 1, None).repack is repack


def test_without_numbers_weights_are_packed():
    assert choose_placement("auto", need(), "f16", 1, None).repack


def test_packed_weights_beyond_memory_are_refused():
    with pytest.raises(ModelError, match=r"weights take 4\.0 GB.*3\.0 GB of memory are free.*repack='auto'"):
        choose_placement(True, need(), "f16", 1, 3 * GB)
    assert not choose_placement(False, need(), "f16", 1, 3 * GB).repack


@pytest.mark.parametrize("repack", [True, False, "auto"])
def test_a_cache_beyond_memory_is_refused(repack):
    with pytest.raises(InvalidRequest, match=r"100,000 cells takes 10\.0 GB, and 3\.0 GB") as caught:
        choose_placement(repack, need(), "f16", 100_000, 3 * GB)
    assert (caught.value.param, caught.value.value) == ("cells", 100_000)
    assert not choose_placement(False, need(), "q8", 20_000, 3 * GB).repack


def test_load_tells_what_it_chose(smollm2_path):
    with stretto.load(smollm2_path, cells=64, repack=False) as llm:
        assert str(llm.backend.placement).startswith("weights read from the file")
        mapped = llm.generate("Once upon a time", max_tokens=8, temperature=0).tokens
    with stretto.load(smollm2_path, cells=64) as llm:
        assert llm.backend.placement.repack
        assert llm.generate("Once upon a time", max_tokens=8, temperature=0).tokens == mapped


def test_load_refuses_what_cannot_run(smollm2_path, monkeypatch):
    monkeypatch.setattr("stretto.loading.open.free_memory", lambda: RESERVE_BYTES + 50_000_000)
    with stretto.load(smollm2_path, cells=64) as llm:
        assert not llm.backend.placement.repack
    with pytest.raises(ModelError, match="repack=False leaves the weights in the file"):
        stretto.load(smollm2_path, cells=64, repack=True)
    with pytest.raises(InvalidRequest, match="fewer cells"):
        stretto.load(smollm2_path, cells=8192)


# -- memory --


@pytest.mark.parametrize("fmt", sorted(READABLE), ids=lambda fmt: fmt.name)
def test_packed_weights_are_as_small_as_the_file(fmt):
    rows, columns = 64, 2048
    data = random_weights(fmt, rows, columns)
    packed = _native.ops.packed_bytes(fmt, rows, columns)
    assert packed <= 1.1 * data.nbytes
    bits = PACKED_BITS.get(fmt.name, 8 * fmt.size / fmt.block)
    assert packed == rows * columns * bits / 8  # what `memory` counts with


def resident_share(tensors):
    """How much of mapped tensors is in memory, by the page cache's own account."""
    resident = total = 0
    libc = ctypes.CDLL(None, use_errno=True)
    for tensor in tensors:
        first = tensor.data.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
        pages = -(-(tensor.data.ctypes.data + tensor.nbytes - first) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        if libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(pages * mmap.PAGESIZE), found):
            raise OSError(ctypes.get_errno(), "mincore")
        resident += sum(byte & 1 for byte in found)
        total += pages
    return resident / total


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="pages cannot be dropped here")
def test_loading_without_packing_reads_no_matrix(smollm2_path, tmp_path):
    path = tmp_path / "model.gguf"
    shutil.copyfile(smollm2_path, path)
    with path.open("rb") as opened:
        os.fdatasync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with GGUF(path) as file:
        matrices = [tensor for tensor in file.tensors.values() if len(tensor.shape) == 2]
        if resident_share(matrices) > 0.1:
            pytest.skip("this file system keeps its pages")
        spec = read_spec(file)
        backend = NativeBackend(file, spec, 64, 1, repack=False)
        # Vectors stand between the matrices, and reading one brings some pages around it.
        assert resident_share(matrices) < 0.25
        text_logits(backend, [1, 2, 3])
        assert resident_share(matrices) > 0.99
        backend.close()
