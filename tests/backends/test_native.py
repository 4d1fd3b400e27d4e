"""The native backend: near the reference for every architecture, kernel set and kind of cache."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import stretto
from stretto import _native
from stretto.backends import native_weights
from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.errors import InvalidRequest, ModelError
from stretto.hardware import kernel_sets
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.testing import byte_tokenizer
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from tiny_models import NAMES, TEXTS, answer, text_batch, text_logits, tiny_file, tiny_spec

KERNELS = _native.kernel_names()
SOME = ["llama", "llama-yarn", "qwen2", "qwen3", "gemma3"]

# Of logits with about unit variance. K and V as half floats cost 0.0084 at most, in 8 bits 0.19; what is
# left beside an oracle that rounds them in the same way is float32's, but where a number lies between two
# halves it may go either way.
TOLERANCE = {"f16": 0.02, "q8": 0.4}
ROUNDED_ALIKE = {"f16": 2e-3, "q8": 0.05}


def tiny_native(name, n_cells=64, threads=2, kv="f16", **options):
    return NativeBackend(tiny_file(name), tiny_spec(name), n_cells, threads, kv, **options)


def rounded(x, kv):
    """K or V of heads [..., size] as a cache of this type gives them back."""
    if kv == "f16":
        return x.astype(np.float16).astype(np.float32)
    out = np.empty_like(x)
    for start in range(0, x.shape[-1], 32):
        block = x[..., start : start + 32]
        step = (np.abs(block).max(axis=-1, keepdims=True) / np.float32(127)).astype(np.float16)
        step = np.maximum(step.astype(np.float32), np.float32(1e-30))
        out[..., start : start + 32] = np.clip(np.rint(block / step), -127, 127) * step
    return out


class Rounding(ReferenceBackend):
    """The reference, with K and V rounded as the native cache stores them."""

    kv = "f16"

    def _stored(self, x):
        return rounded(x, self.kv)

    def rotate_cells(self, cells, delta):
        super().rotate_cells(cells, delta)
        for keys in self.keys:
            keys[cells] = rounded(keys[cells], self.kv)


def oracle(name, n_cells=64, kv="f16"):
    backend = Rounding(tiny_file(name), tiny_spec(name), n_cells)
    backend.kv = kv
    return backend


def run(backend, cells, batch):
    batch.place(cells)
    return backend.forward(batch)


def near(found, expected, tolerance=ROUNDED_ALIKE["f16"]):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.fixture(params=KERNELS)
def kernels(request, monkeypatch):
    monkeypatch.setenv("STRETTO_KERNELS", request.param)
    return request.param


@pytest.fixture(params=SOME)
def name(request):
    return request.param


@pytest.fixture
def tokens(name):
    return answer(name, "tokens.0").tolist()


def int32(*values):
    return np.array(values, np.int32)


# -- every architecture, kernel set and kind of cache --


@pytest.mark.golden
@pytest.mark.parametrize("kv", ["f16", "q8"])
@pytest.mark.parametrize("name", NAMES)
def test_logits(kernels, name, kv):
    backend = tiny_native(name, kv=kv)
    assert backend.kernels == kernels
    for text in TEXTS:
        ids = answer(name, f"tokens.{text}")
        found = text_logits(backend, ids)
        near(found, answer(name, f"logits.{text}"), TOLERANCE[kv])
        near(found, text_logits(oracle(name, kv=kv), ids), ROUNDED_ALIKE[kv])


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states(kernels, name):
    ids = answer(name, "tokens.0")
    found, expected = [], []
    for backend, rows in ((tiny_native(name), found), (oracle(name), expected)):
        batch = text_batch(ids)
        batch.place(Cells(64))
        rows.append(backend.hidden(batch))
        single, cells = Batch(), Cells(64)
        single.add(int(ids[0]), 0, [0], logits=True)
        single.place(cells)
        rows.append(backend.hidden(single))
    assert found[0].shape == (48, 32)
    assert found[0].dtype == np.float32
    assert found[0].flags.writeable
    near(found[0], expected[0], 5e-3)
    np.testing.assert_array_equal(found[1], found[0][:1])


def test_nothing_wanted_gives_no_rows():
    backend, cells, batch = tiny_native("llama"), Cells(64), Batch()
    batch.extend([1, 2, 3], 0, [0])
    assert run(backend, cells, batch).shape == (0, 96)
    single = Batch()
    single.add(4, 3, [0])
    assert run(backend, cells, single).shape == (0, 96)
    alone = text_logits(tiny_native("llama"), [1, 2, 3, 4, 5])[-1:]
    np.testing.assert_array_equal(run(backend, cells, text_batch([5], 4)), alone)


def test_only_wanted_rows_come_back(name, tokens):
    backend, batch = tiny_native(name), Batch()
    batch.extend(tokens[:10], 0, [0])
    batch.add(tokens[10], 10, [0], logits=True)
    batch.extend(tokens[11:20], 11, [0], logits=True)
    found = run(backend, Cells(64), batch)
    np.testing.assert_array_equal(found, text_logits(tiny_native(name), tokens[:20])[[10, 19]])
    assert found.dtype == np.float32
    assert found.flags.writeable


def test_rows_stay_when_the_backend_goes(tokens):
    backend = tiny_native("llama")
    rows = text_logits(backend, [1, 2, 3])
    kept = rows.copy()
    text_logits(backend, [4, 5, 6])
    backend.close()
    np.testing.assert_array_equal(rows, kept)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_long_text_with_windows(name):
    # Two borders of attention's spans, and windows that lie across them.
    ids = np.random.default_rng(0).integers(0, 96, 1100).tolist()
    backend, reference = tiny_native(name, 1200), oracle(name, 1200)
    found, expected = text_logits(backend, ids), text_logits(reference, ids)
    near(found, expected, 5e-3)
    assert np.isfinite(found).all()


# -- vectors, members, moved cells --


def test_vectors_in_place_of_tokens(name, tokens):
    spec = tiny_spec(name)
    embeddings = tiny_file(name).tensors["token_embd.weight"].dequantize()
    embeddings = embeddings * np.float32(spec.embedding_scale)
    batch = Batch()
    for i, token in enumerate(tokens):
        if i % 3:
            batch.add_vector(embeddings[token], i, [0], logits=True)
        else:
            batch.add(token, i, [0], logits=True)
    found = run(tiny_native(name), Cells(64), batch)
    np.testing.assert_array_equal(found, text_logits(tiny_native(name), tokens))
    single = Batch()
    single.add_vector(embeddings[tokens[0]], 0, [0], logits=True)
    np.testing.assert_array_equal(run(tiny_native(name), Cells(64), single), found[:1])


def test_a_vector_that_is_no_tokens(name, tokens):
    vector = np.random.default_rng(3).standard_normal(32)
    found = []
    for backend in (tiny_native(name), oracle(name)):
        batch = text_batch(tokens[:5])
        batch.add_vector(vector, 5, [0], logits=True)
        batch.add(tokens[6], 6, [0], logits=True)
        found.append(run(backend, Cells(64), batch))
    near(found[0], found[1])


MEMBERS = [7, 21, 50]
PAST = 12


def causal(n):
    """bool[n, 64]: row i sees cells 0 to i."""
    return np.tri(n, 64, dtype=bool)


def masked_logits(name, tokens, mask):
    """By the reference: the past, the members at one position, five later tokens, seeing what `mask` says."""
    backend, batch = oracle(name), text_batch(tokens[:PAST])
    for member, token in enumerate(MEMBERS, start=1):
        batch.add(token, PAST, [member], logits=True)
    for i in range(5):
        batch.add(tokens[PAST + i], PAST + 1 + i, [9], logits=True)
    batch.place(Cells(64))
    assert batch.placement.cells.tolist() == list(range(len(batch)))  # so that a mask's columns are rows
    return backend.logits(backend.compute(batch, mask=mask).hidden)


def test_isolated_members(name, tokens):
    backend, cells, batch = tiny_native(name), Cells(64), Batch()
    run(backend, cells, text_batch(tokens[:PAST]))
    for member, token in enumerate(MEMBERS, start=1):
        cells.copy(0, member)
        batch.add(token, PAST, [member], logits=True)
    found = run(backend, cells, batch)
    for row, token in zip(found, MEMBERS, strict=True):
        alone = text_logits(tiny_native(name), [*tokens[:PAST], token])[-1]
        np.testing.assert_array_equal(row, alone)  # each as if it were alone, to the bit
    for member in (1, 2, 3):
        cells.copy(member, 0)
        cells.remove(member)
    later = run(backend, cells, text_batch(tokens[PAST : PAST + 5], PAST + 1))

    mask = causal(PAST + 3 + 5)
    for i in range(3):
        mask[PAST + i, PAST : PAST + i] = False
    by_hand = masked_logits(name, tokens, mask)
    near(found, by_hand[PAST : PAST + 3])
    near(later, by_hand[PAST + 3 :])


def test_visible_members(name, tokens):
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        backend, cells, batch = tiny_native(name), Cells(64), text_batch(tokens[:PAST])
        for i in order:
            batch.add(MEMBERS[i], PAST, [0], logits=True)
        found = run(backend, cells, batch)[PAST:]
        later = run(backend, cells, text_batch(tokens[PAST : PAST + 5], PAST + 1))
        results.append((found[np.argsort(order)], later))
    (found, later), permuted = results

    mask = causal(PAST + 3 + 5)
    mask[PAST : PAST + 3, PAST : PAST + 3] = True
    by_hand = masked_logits(name, tokens, mask)
    near(found, by_hand[PAST : PAST + 3])
    near(later, by_hand[PAST + 3 :])
    # The view orders members by token, however they came: permuted rows are the same bits.
    np.testing.assert_array_equal(found, permuted[0])
    np.testing.assert_array_equal(later, permuted[1])
    alone = text_logits(tiny_native(name), [*tokens[:PAST], MEMBERS[0]])[-1]
    assert np.abs(found[0] - alone).max() > 0.01


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_copied_cells_are_the_same_bits(name, tokens, kv):
    backend, cells = tiny_native(name, kv=kv), Cells(64)
    run(backend, cells, text_batch(tokens[:20]))
    cells.copy(0, 1)
    old, new = cells.unshare(1)
    backend.copy_cells(old, new)
    cells.remove(0)
    run(backend, cells, text_batch([5] * 20, 0, [2]))  # what 0 had is written over
    found = run(backend, cells, text_batch(tokens[20:30], 20, [1]))
    np.testing.assert_array_equal(found, text_logits(tiny_native(name, kv=kv), tokens[:30])[20:])


@pytest.mark.parametrize("kv", ["f16", "q8"])
@pytest.mark.parametrize("delta", [9, -20, 60, -40])
def test_turned_cells(name, tokens, kv, delta):
    # A hole is made or closed: the second half moves, as in the reference that rounds alike.
    found = []
    for backend in (tiny_native(name, kv=kv), oracle(name, kv=kv)):
        cells = Cells(64)
        run(backend, cells, text_batch(tokens[:8]))
        run(backend, cells, text_batch(tokens[8:20], 50))
        moved = cells.shift(0, 50, None, delta)
        backend.rotate_cells(moved, delta)
        found.append(run(backend, cells, text_batch(tokens[20:25], 62 + delta)))
    near(found[0], found[1], ROUNDED_ALIKE[kv])


def test_turning_by_nothing_or_nobody(tokens):
    backend, cells = tiny_native("llama"), Cells(64)
    run(backend, cells, text_batch([1, 2, 3]))
    backend.rotate_cells(cells.view(0), 0)
    backend.rotate_cells(int32(), 5)
    backend.copy_cells(int32(), int32())
    found = run(backend, cells, text_batch([4], 3))
    np.testing.assert_array_equal(found, text_logits(tiny_native("llama"), [1, 2, 3, 4])[-1:])


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_cells_read_and_written_are_the_same_bits(name, tokens, kv):
    backend, cells = tiny_native(name, kv=kv), Cells(64)
    run(backend, cells, text_batch(tokens[:40]))
    data = backend.read_cells(cells.view(0))
    assert data.shape == (40, backend.cell_bytes)
    other, cells = tiny_native(name, 128, kv=kv), Cells(128)
    assert (other.cell_bytes, other.cell_layout) == (backend.cell_bytes, backend.cell_layout)
    run(other, cells, text_batch([5] * 7, 0, [2]))
    taken = cells.place(tokens[:40], range(40), [(0,)] * 40)
    order = np.random.default_rng(0).permutation(40)  # cells in any order, more than a block of them
    other.write_cells(taken[order], data[order])
    np.testing.assert_array_equal(other.read_cells(taken), data)
    found = run(other, cells, text_batch(tokens[40:48], 40))
    np.testing.assert_array_equal(found, text_logits(tiny_native(name, kv=kv), tokens[:48])[40:])


def test_the_bytes_of_a_cell_in_their_order():
    backend, spec = tiny_native("llama"), tiny_spec("llama")
    reference = oracle("llama")
    for each in (backend, reference):
        batch = text_batch(range(10))
        batch.place(Cells(64))
        each.forward(batch)
    halves = backend.read_cells(int32(*range(10))).view(np.float16)
    halves = halves.reshape(10, spec.n_layer, 2, spec.n_kv_head, spec.head_size)
    near(halves[:, :, 0].swapaxes(0, 1), np.stack(reference.keys)[:, :10], 5e-3)
    near(halves[:, :, 1].swapaxes(0, 1), np.stack(reference.values)[:, :10], 5e-3)


def test_a_kind_of_cache_has_a_name():
    layouts = {tiny_native(name, kv=kv).cell_layout for name in ("llama", "gemma3") for kv in ("f16", "q8")}
    assert len(layouts) == 4
    assert tiny_native("llama").cell_layout.startswith("native f16")


# -- choosing kernels --


def test_the_best_kernels_are_the_default(monkeypatch):
    monkeypatch.delenv("STRETTO_KERNELS", raising=False)
    assert tiny_native("llama").kernels == _native.kernels() == KERNELS[0]
    assert KERNELS[-1] == "portable"
    monkeypatch.setenv("STRETTO_KERNELS", "")
    assert tiny_native("llama").kernels == KERNELS[0]


@pytest.mark.parametrize("wrong", ["neon" if "neon" not in KERNELS else "avx2", "AVX2", "quick", " portable"])
def test_kernels_that_cannot_run_here(monkeypatch, wrong):
    monkeypatch.setenv("STRETTO_KERNELS", wrong)
    with pytest.raises(InvalidRequest) as raised:
        tiny_native("llama")
    assert f"STRETTO_KERNELS={wrong!r}" in str(raised.value)
    assert all(kernels in str(raised.value) for kernels in KERNELS)


def test_kernels_that_the_build_leaves_out(monkeypatch):
    """Those of this machine are compiled where nobody asks for more."""
    monkeypatch.setattr(kernel_sets, "left_out", lambda: ("avx2",))
    monkeypatch.setattr(kernel_sets, "available", lambda: ("portable",))
    monkeypatch.setenv("STRETTO_KERNELS", "avx2")
    with pytest.raises(InvalidRequest, match=r"'avx2' is not in this build.*STRETTO_KERNEL_SETS=all"):
        kernel_sets.select()


def test_every_kernel_set_of_this_machine_is_tested():
    if (missing := kernel_sets.left_out()) and not os.environ.get("CI"):
        pytest.skip(f"{', '.join(missing)}: not in this build; STRETTO_KERNEL_SETS=all builds them")
    assert missing == ()


def test_a_build_has_the_best_set_of_the_machine_that_made_it():
    able = _native.kernel_names(compiled=False)
    assert set(KERNELS) <= set(able)
    assert [name for name in able if name in KERNELS] == KERNELS
    assert kernel_sets.left_out() == tuple(name for name in able if name not in KERNELS)


# -- what is refused in Python --


def test_a_closed_backend_says_so():
    backend, batch = tiny_native("llama"), text_batch([1])
    batch.place(Cells(64))
    backend.close()
    backend.close()
    for call in (
        lambda: backend.forward(batch),
        lambda: backend.hidden(batch),
        lambda: backend.copy_cells(int32(0), int32(1)),
        lambda: backend.rotate_cells(int32(0), 1),
        lambda: backend.read_cells(int32(0)),
        lambda: backend.write_cells(int32(0), np.zeros((1, backend.cell_bytes), np.uint8)),
        lambda: backend.kernels,
        lambda: backend.threads,
    ):
        with pytest.raises(InvalidRequest, match="the model is closed; load it again"):
            call()


def test_a_batch_without_cells_is_refused():
    with pytest.raises(InvalidRequest, match=r"call batch\.place\(cells\) first"):
        tiny_native("llama").forward(text_batch([1]))


def test_a_format_without_a_layout_is_refused(monkeypatch):
    monkeypatch.setattr(native_weights, "PACKABLE", frozenset({Format.F32}))
    with pytest.raises(ModelError, match=r"F16 are read by no backend.*stretto quantize") as raised:
        tiny_native("llama")
    assert raised.value.field.startswith("tensor '")


# -- beside each other, and interrupted --


def test_two_models_at_once(smollm2_path):
    with (
        stretto.load(smollm2_path, cells=64, threads=2) as large,
        LLM(tiny_native("gemma3", 128), byte_tokenizer()) as small,
    ):
        prompts = [(large, [504, 3575, 282, 4649, 314], 8), (small, [1, 2, 3], 100)]
        options = {"temperature": 0, "ignore_eos": True}
        alone = [llm.generate(ids, max_tokens=n, **options).tokens for llm, ids, n in prompts]
        together = [None, None]

        def work(i):
            llm, ids, n = prompts[i]
            together[i] = [llm.generate(ids, max_tokens=n, **options).tokens for _ in range(3)]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert together == [[tokens] * 3 for tokens in alone]


@pytest.mark.parametrize("value", [False, True])
def test_an_infinite_number_in_the_cache_shows(smollm2_path, value):
    file = GGUF(smollm2_path)
    backend, cells = NativeBackend(file, read_spec(file), 64, 2, "f16"), Cells(64)
    batch = text_batch([1, 2, 3, 4])
    batch.place(cells)
    assert np.isfinite(backend.forward(batch)).all()
    stored = backend.read_cells(np.array([1], dtype=np.int32))
    halves = stored.view(np.float16).reshape(30, 2, 3, 64)  # [layer, K or V, head, number]
    halves[0, int(value), 0, 4:8] = np.inf, -np.inf, np.inf, -np.inf
    backend.write_cells(np.array([1], dtype=np.int32), stored)
    batch = text_batch([5], 4)
    batch.place(cells)
    assert not np.isfinite(backend.forward(batch)).any()
    backend.close()


INTERRUPTED = """
import sys
import stretto

llm = stretto.load(sys.argv[1], cells=8192)
prompt = [504, 3575, 282, 4649, 314]
before = llm.generate(prompt, max_tokens=4, temperature=0).tokens
forward = llm.backend.forward

def telling(batch):
    llm.backend.forward = forward
    print("reading", flush=True)
    return forward(batch)

llm.backend.forward = telling
try:
    llm.generate(prompt * 1600, max_tokens=1)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    assert llm.cache.stats().held == 0
    llm.cells.check()
    assert llm.generate(prompt, max_tokens=4, temperature=0).tokens == before
    llm.close()
    print("alive")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_in_a_long_prefill(smollm2_path):
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(smollm2_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "reading\n"
        time.sleep(0.2)  # now it is among the first of 8,000 tokens
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
        assert out == "interrupted\nalive\n"
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# -- weights that are packed between passes --


@pytest.fixture
def deferred(monkeypatch):
    monkeypatch.setattr(native_weights, "DEFERRED_BYTES", 0)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "qwen3moe"])
def test_deferred_weights_have_the_same_bits(name, threads, deferred, monkeypatch):
    text = np.random.default_rng(1).integers(0, 96, 40).tolist()
    monkeypatch.setattr(native_weights.Packing, "start", lambda packing: None)
    backend = tiny_native(name, threads=threads)
    n_matrices, size = backend.decoder.n_deferred, backend.decoder.weight_bytes
    assert n_matrices
    unpacked = text_logits(backend, text)
    monkeypatch.undo()
    backend._packing.start()
    beside = text_logits(backend, text)  # while the thread packs, or after it
    backend.settle()
    packed = text_logits(backend, text)
    assert backend.decoder.n_deferred == 0
    eager = tiny_native(name, threads=threads)
    assert eager.decoder.n_deferred == 0
    assert eager.decoder.weight_bytes == size
    for rows in (unpacked, beside, packed):
        np.testing.assert_array_equal(rows, text_logits(eager, text))


def test_a_model_answers_while_it_is_packed(smollm2_path, deferred, monkeypatch):
    options = {"max_tokens": 12, "temperature": 0}
    with stretto.load(smollm2_path, threads=2, cells=256) as llm:
        text = llm.generate("The capital of France is", **options).text
        llm.backend.settle()
        assert llm.backend.decoder.n_deferred == 0
        llm.cache.clear()
        assert llm.generate("The capital of France is", **options).text == text
    monkeypatch.undo()
    with stretto.load(smollm2_path, threads=2, cells=256) as llm:
        assert llm.generate("The capital of France is", **options).text == text


def test_a_model_may_be_closed_while_it_is_packed(smollm2_path, deferred):
    threads = threading.active_count()
    for _ in range(3):
        stretto.load(smollm2_path, threads=2, cells=64).close()
        assert threading.active_count() == threads


def test_a_process_may_end_while_a_model_is_packed(smollm2_path):
    code = (
        "import sys, stretto\n"
        "from stretto.backends import native_weights\n"
        "native_weights.DEFERRED_BYTES = 0\n"
        "llm = stretto.load(sys.argv[1], threads=2, cells=64)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(smollm2_path)], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
