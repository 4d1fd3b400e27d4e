"""Closing a model gives everything back: memory, threads, files."""

import gc
import os
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.backends.native import NativeBackend
from stretto.errors import ModelError
from tiny_models import text_logits, tiny_file, tiny_spec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20


def resident(collect=True):
    """Bytes of this process in memory."""
    if collect:
        gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def n_threads():
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def open_files():
    return sorted(str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


def mapped(path):
    """How many pieces of a file are mapped."""
    return Path("/proc/self/maps").read_text().count(str(path))


def use_tiny(n_cells=2048, threads=3, kv="f16"):
    backend = NativeBackend(tiny_file("gemma3"), tiny_spec("gemma3"), n_cells, threads, kv)
    rows = text_logits(backend, np.arange(90).tolist())
    backend.close()
    return rows


def test_fifty_cycles_of_a_tiny_model():
    for _ in range(5):  # what is allocated once, is
        use_tiny()
    before, threads = resident(), n_threads()
    for i in range(50):
        use_tiny(kv=["f16", "q8"][i % 2])
        assert n_threads() == threads
    # A cache of 2,048 cells alone is 0.9 MB here; fifty of them kept would be 45.
    assert resident() - before < 4 * MIB


def test_results_outlive_their_model_and_hold_nothing_else():
    kept = [use_tiny(n_cells=8192) for _ in range(3)]
    before = resident()
    kept += [use_tiny(n_cells=8192)[-1:] for _ in range(20)]
    assert resident() - before < 4 * MIB
    assert all(np.array_equal(rows[-1], kept[0][-1]) for rows in kept)


@pytest.mark.parametrize("repack", [True, False], ids=["packed", "from the file"])
def test_cycles_of_a_real_model(smollm2_path, repack):
    def use():
        with stretto.load(smollm2_path, cells=256, repack=repack) as llm:
            return llm.generate("The capital of France is", max_tokens=2, temperature=0).tokens

    first = use()
    before, threads, files = resident(), n_threads(), open_files()
    for _ in range(4):
        assert use() == first
    assert n_threads() == threads
    assert open_files() == files
    assert mapped(smollm2_path) == 0
    # Its weights are 98 MB: not one copy of them stays.
    assert resident() - before < 48 * MIB


def test_closing_does_not_wait_for_the_garbage_collector(smollm2_path):
    threads = n_threads()
    llm = stretto.load(smollm2_path, cells=64, threads=4)
    assert n_threads() == threads + 3
    gc.disable()
    try:
        llm.generate("Hello", max_tokens=1)
        llm.close()
        assert n_threads() == threads
    finally:
        gc.enable()
    assert llm.spec.n_layer == 30  # what is plain data can still be read


def test_the_system_gets_the_memory_back(smollm2_path):
    # Not only the process's own heap: the next model may need it, or another program.
    for _ in range(3):
        llm = stretto.load(smollm2_path, cells=64)
        weights, loaded = llm.backend._decoder.weight_bytes, resident()
        assert weights > 80 * MIB
        llm.close()
        assert loaded - resident() > 0.9 * weights


def test_a_model_that_is_forgotten_is_freed():
    threads = n_threads()
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 64, 4)
    reference = weakref.ref(backend)
    assert n_threads() == threads + 3
    del backend
    gc.collect()
    assert reference() is None
    assert n_threads() == threads


def test_a_failed_load_leaves_nothing(monkeypatch):
    monkeypatch.setattr("stretto.backends.native.PACKABLE", frozenset())
    threads, before = n_threads(), resident()
    for _ in range(10):
        with pytest.raises(ModelError):
            NativeBackend(tiny_file("llama"), tiny_spec("llama"), 1 << 16, 3)
    gc.collect()
    assert n_threads() == threads
    assert resident() - before < 4 * MIB


def test_an_idle_model_uses_no_processor():
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 64, 4)
    text_logits(backend, [1, 2, 3])
    time.sleep(0.2)  # the threads look for work a moment longer, then sleep
    start = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - start < 0.1
    backend.close()


def test_forward_does_not_grow():
    backend = NativeBackend(tiny_file("qwen3"), tiny_spec("qwen3"), 1024, 2)
    text = np.random.default_rng(0).integers(0, 96, 900).tolist()
    text_logits(backend, text)
    before = resident()
    for _ in range(20):
        text_logits(backend, text)
    assert resident() - before < 2 * MIB
    assert backend._decoder.cache_bytes == 3 * 2 * 2 * 1024 * 2 * 16
    backend.close()
