"""Closing a model gives everything back: memory, threads, files."""

import ctypes
import gc
import itertools
import json
import os
import re
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.backends.native import NativeBackend
from stretto.errors import ModelError
from stretto.weights.writer import write_gguf
from tiny_models import text_logits, tiny_file, tiny_spec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20


def resident(collect=True):
    """Bytes of this process in memory."""
    if collect:
        gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settled():
    """`resident`, without garbage and without what the C library keeps free in its heap.

    That part grows though nothing is lost: glibc before 2.38 does not reuse all that aligned allocations
    leave, about 0.1 MB a load (its bug 14581), and a tokenizer leaves some 10 MB for the next one. Where many
    other tests had run before, it came to 29 MB.
    """
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    return resident()


def n_threads(expected=None):
    """How many threads this process has; one that was joined may be listed a moment longer."""
    counts = []
    for _ in range(20 if expected is None else 1000):
        counts.append(len(os.listdir("/proc/self/task")))  # noqa: PTH208
        if counts[-1] == expected:
            return expected
        time.sleep(0.01)
    return min(counts)


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


def grown(use, first, last):
    """How many bytes this process grows by from cycle `first` to cycle `last`; threads and files stay.

    It settles after every cycle: a closed model's tokenizer waits for the garbage collector, and two of them
    at a time would leave holes.
    """
    use()
    sizes, threads, files = [settled()], n_threads(), open_files()
    for _ in range(last - 1):
        use()
        assert n_threads(threads) == threads
        assert open_files() == files
        sizes.append(settled())
    return sizes[last - 1] - sizes[first - 1]


def test_many_cycles_of_a_tiny_backend():
    # A cache of 2,048 cells alone is 0.9 MB here: forty of them kept would be 36.
    kinds = itertools.cycle(["f16", "q8"])
    assert grown(lambda: use_tiny(kv=next(kinds)), 8, 24) < MIB // 4


def test_many_cycles_of_a_tiny_model(tmp_path):
    path = tmp_path / "tiny.gguf"
    file = tiny_file("llama")
    tokens = ["a", "b", "ab", *(f"[{token}]" for token in range(3, tiny_spec("llama").n_vocab))]
    words = {"model": "gpt2", "tokens": tokens, "merges": ["a b"]}
    words = {f"tokenizer.ggml.{key}": value for key, value in words.items()}
    write_gguf(path, {**file.metadata, **words}, file.tensors)

    def use():
        with stretto.load(path, cells=512, threads=3) as llm:
            assert len(llm.generate([1, 2, 3], max_tokens=4, temperature=0, ignore_eos=True).tokens) == 4

    # 12 KB were measured: a kilobyte or so a cycle, in the free lists and caches of Python, which fill up.
    assert grown(use, 8, 24) < MIB // 4
    assert mapped(path) == 0


def test_results_outlive_their_model_and_hold_nothing_else():
    kept = [use_tiny(n_cells=8192) for _ in range(3)]
    before = settled()
    kept += [use_tiny(n_cells=8192)[-1:] for _ in range(20)]
    assert settled() - before < 16 * MIB  # twenty caches are 72
    assert all(np.array_equal(rows[-1], kept[0][-1]) for rows in kept)


@pytest.mark.slow
@pytest.mark.parametrize("repack", [True, False], ids=["packed", "from the file"])
def test_cycles_of_a_real_model(smollm2_path, repack):
    answers = set()

    def use():
        with stretto.load(smollm2_path, cells=256, repack=repack) as llm:
            answers.add(tuple(llm.generate("The capital of France is", max_tokens=2, temperature=0).tokens))

    # Its weights are 98 MB, its tokenizer about 20: kept, either is 80 or more after four cycles. Mostly it
    # is some kilobytes; but Python takes memory for its objects by the MiB, the system gives it in huge pages
    # of 2 MiB, and holes that other tests left fill at any time: 5.6 MiB were seen.
    assert grown(use, 3, 7) < 16 * MIB
    assert len(answers) == 1
    assert mapped(smollm2_path) == 0


# Prints what this process grows by from "tokenizer loaded" to the first token, the cache left out: at the end
# (proportional set size) and at the peak (resident set).
GROWTH = """
import gc, json, sys
from pathlib import Path
import stretto
from stretto.loading import describe
from stretto.text.loading import load_tokenizer
from stretto.weights.gguf import GGUF

def read(file, key):
    lines = Path("/proc/self", file).read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key + ":"))

path = sys.argv[1]
with GGUF(path) as file:
    tokenizer = load_tokenizer(file.metadata)
del file
gc.collect()
describe.load_gguf_tokenizer = lambda file: tokenizer
Path("/proc/self/clear_refs").write_text("5")  # the highest resident set begins anew
pss, rss = read("smaps_rollup", "Pss"), read("status", "VmRSS")
llm = stretto.load(path, cells=64, threads=2)
llm.generate([5, 6, 7], max_tokens=1, temperature=0)
end, peak = read("smaps_rollup", "Pss") - pss, read("status", "VmHWM") - rss
cache = 64 * llm.backend.cell_bytes
print(json.dumps([end - cache, peak - cache]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_a_model_takes_little_more_than_its_file(model, request):
    path = request.getfixturevalue(model)
    command = [sys.executable, "-c", GROWTH, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    end, peak = json.loads(done.stdout)
    assert end <= 1.15 * path.stat().st_size
    assert peak <= 1.15 * path.stat().st_size


def test_nothing_of_the_file_stays_in_memory(gemma3_path):
    with stretto.load(gemma3_path, cells=64) as llm:
        parts = Path("/proc/self/smaps").read_text().split(str(gemma3_path))[1:]
        resident_kib = sum(int(re.search(r"Rss: +([0-9]+) kB", part)[1]) for part in parts)
        assert resident_kib < 4096  # its layers are 54 MB: a byte read may bring a huge page, and did
        assert llm.generate("Hello", max_tokens=1).tokens


def test_closing_does_not_wait_for_the_garbage_collector(smollm2_path):
    gc.collect()  # models that other tests have left
    threads, maps = n_threads(), mapped(smollm2_path)
    llm = stretto.load(smollm2_path, cells=64, threads=4)
    assert n_threads(threads + 3) == threads + 3
    gc.disable()
    try:
        llm.generate("Hello", max_tokens=1)
        llm.close()
        assert n_threads(threads) == threads
        assert mapped(smollm2_path) == maps
    finally:
        gc.enable()
    assert llm.spec.n_layer == 30  # what is plain data can still be read


def test_the_system_gets_the_memory_back(smollm2_path):
    # Not only the process's own heap: the next model may need it, or another program.
    for _ in range(3):
        llm = stretto.load(smollm2_path, cells=64)
        weights, loaded = llm.backend.decoder.weight_bytes, resident()
        assert weights > 80 * MIB
        llm.close()
        assert loaded - resident() > 0.9 * weights


def test_a_model_that_is_forgotten_is_freed():
    threads = n_threads()
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 64, 4)
    reference = weakref.ref(backend)
    assert n_threads(threads + 3) == threads + 3
    del backend
    gc.collect()
    assert reference() is None
    assert n_threads(threads) == threads


def test_a_failed_load_leaves_nothing(monkeypatch):
    monkeypatch.setattr("stretto.backends.native_weights.PACKABLE", frozenset())
    threads, before = n_threads(), settled()
    for _ in range(10):
        with pytest.raises(ModelError):
            NativeBackend(tiny_file("llama"), tiny_spec("llama"), 1 << 16, 3)
    assert n_threads(threads) == threads
    assert settled() - before < 16 * MIB


def test_an_idle_model_uses_no_processor():
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 64, 4)
    text_logits(backend, [1, 2, 3])
    used = []
    for _ in range(20):  # the threads look for work a moment longer, a busy machine's moment, then sleep
        start = time.process_time()
        time.sleep(0.5)
        used.append(time.process_time() - start)
        if used[-1] < 0.1:
            break
    assert used[-1] < 0.1
    backend.close()


def test_forward_does_not_grow():
    backend = NativeBackend(tiny_file("qwen3"), tiny_spec("qwen3"), 1024, 2)
    text = np.random.default_rng(0).integers(0, 96, 900).tolist()
    text_logits(backend, text)
    before = settled()
    for _ in range(60):
        text_logits(backend, text)
    assert settled() - before < 8 * MIB  # the rows of sixty texts are 20
    assert backend.decoder.cache_bytes == 3 * 2 * 2 * 1024 * 2 * 16
    backend.close()
