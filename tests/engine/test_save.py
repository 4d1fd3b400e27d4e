"""`seq.save` and `llm.restore`: the restored sequence goes on as the saved one would have."""

import os
import threading

import numpy as np
import pytest

import stretto
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache import snapshot
from stretto.engine.sequence import prepare, track_in
from stretto.errors import CacheFull, InvalidRequest, SnapshotError, Unsupported
from stretto.llm import LLM
from stretto.sampling.sampler import RandomStream
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import tiny_file, tiny_spec

OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
GREEDY = {"temperature": 0}


def flat(seen):
    """A script that leaves the choice to the random numbers, and yet depends on all it sees."""
    return np.random.default_rng(seen).standard_normal(258)


def tiny_llm(name="llama", kind="f16", cells=64, threads=2, **options):
    """A tiny model on the reference backend, or on the native one with a cache of this kind."""
    file, spec = tiny_file(name), tiny_spec(name)
    if kind == "reference":
        backend = ReferenceBackend(file, spec, cells)
    else:
        backend = NativeBackend(file, spec, cells, threads, kind, **options)
    return LLM(backend, byte_tokenizer(), fingerprint=file.fingerprint())


MAKERS = {
    "mock": lambda: mock_llm(flat),
    "reference": lambda: tiny_llm(kind="reference"),
    "reference-gemma3": lambda: tiny_llm("gemma3", "reference"),
    **{
        f"{kind}-{name}": lambda name=name, kind=kind: tiny_llm(name, kind)
        for name in ("llama", "qwen3", "gemma3")
        for kind in ("f16", "q8")
    },
    "f16-llama4": lambda: tiny_llm("llama4", "f16"),
}


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.safetensors"


def prompt(n, seed=0):
    return np.random.default_rng(seed).integers(0, 90, n).tolist()


def agree(llm, found, expected):
    if llm.backend.name == "reference":  # rows of another batch may differ in the last bits
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    else:
        np.testing.assert_array_equal(found, expected)


# -- going on --


def test_goes_on_as_if_nothing_had_happened(make, path):
    llm = make()
    seq = llm.sequence(prompt(20), seed=7)
    for _ in range(5):
        seq.step(**OPEN)
    track_in(llm.engine, seq).exact = 11
    seq.save(path)
    other = make()
    other.sequence(prompt(9)).logits  # noqa: B018  # other cells than in the first
    restored = other.restore(path)
    assert restored.tokens == seq.tokens
    assert restored.positions == seq.positions == list(range(25))
    assert (restored.n_prompt, restored.position, restored.n_pending) == (20, 25, 0)
    assert (track_in(other.engine, restored).exact, track_in(llm.engine, seq).exact) == (11, 11)
    agree(llm, restored.logits, seq.logits)
    options = {**OPEN, "repetition_penalty": 1.3, "presence_penalty": 0.5}  # these look at the history
    assert [restored.step(**options) for _ in range(12)] == [seq.step(**options) for _ in range(12)]
    agree(llm, restored.logits, seq.logits)
    assert (restored.random.seed, restored.random.draws) == (seq.random.seed, seq.random.draws)
    other.cells.check()


def test_beside_the_saved_one_in_the_same_model(make, path):
    llm = make()
    seq = llm.sequence(prompt(12), seed=1)
    seq.save(path)
    assert llm.cache.stats().held == 12
    twin = llm.restore(path)
    assert llm.cache.stats().held == 24  # cells of its own
    agree(llm, twin.logits, seq.logits)
    steps = llm.step([seq, twin], **OPEN)
    assert steps[0].token == steps[1].token
    seq.close()
    twin.close()
    assert llm.cache.stats().held == 0


def test_pending_tokens_are_computed_first(path):
    llm = mock_llm(flat)
    seq = llm.sequence("abc")
    seq.logits  # noqa: B018
    seq.append("def")
    seq.save(path)
    assert seq.n_pending == 0
    restored = llm.restore(path)
    batches = len(llm.backend.batches)
    assert (restored.text, restored.n_pending) == ("abcdef", 0)
    np.testing.assert_array_equal(restored.logits, seq.logits)
    assert llm.backend.batches[batches:] == [[ord("f")]]  # one token again, not the whole


def test_holes_stay_where_they_are(make, path):
    llm = make()
    seq = llm.sequence(prompt(24))
    seq.logits  # noqa: B018
    seq.remove(3, 9)
    seq.append(prompt(4, 1))
    seq.remove(20, 22)
    seq.save(path)
    restored = make().restore(path)
    assert restored.positions == seq.positions
    assert (restored.position, restored.n_prompt) == (28, 16)
    agree(llm, restored.logits, seq.logits)
    assert restored.positions == seq.positions
    restored.append(5)
    seq.append(5)
    agree(llm, restored.logits, seq.logits)


def test_closed_holes_keep_the_turned_keys(make, path):
    llm = make()
    seq = llm.sequence(prompt(24))
    seq.logits  # noqa: B018
    seq.remove(3, 9, close=True)
    seq.save(path)
    restored = make().restore(path)
    assert restored.positions == list(range(18))
    agree(llm, restored.logits, seq.logits)


def test_a_position_that_is_to_be_redone(path):
    llm = mock_llm(flat, cells=6)
    seq = llm.sequence("abcd")
    seq.logits  # noqa: B018
    seq.remove(1, 2)
    prepare(seq)  # its last token has no cell now
    seq.save(path)
    assert llm.restore(path).positions == [0, 2, 3]


def test_forks_are_saved_whole_and_restored_ones_fork(make, path):
    llm = make()
    seq = llm.sequence(prompt(15), seed=2)
    fork = seq.fork()
    fork.append(prompt(5, 1))
    seq.close()
    fork.save(path)
    llm = make()
    restored = llm.restore(path)
    children = [restored.fork(), restored.fork()]
    assert llm.cache.stats().held == 20
    agree(llm, children[0].logits, fork.logits)
    token = fork.step(**OPEN).token
    assert [child.step(**OPEN).token for child in children] == [token, token]


def test_edits_after_restoring(make, path):
    llm = make()
    seq = llm.sequence(prompt(20))
    seq.save(path)
    restored = llm.restore(path)
    for one in (seq, restored):
        one.remove(4, 7)
        one.truncate(15)
    assert restored.positions == seq.positions
    agree(llm, restored.logits, seq.logits)


def test_an_empty_sequence(path):
    llm = mock_llm("Hi")
    llm.sequence(seed=4).save(path)
    restored = llm.restore(path)
    assert (len(restored), restored.random.seed, llm.cache.stats().held) == (0, 4, 0)
    restored.append("p")
    assert restored.step(**GREEDY).text == "H"


def test_half_a_character_goes_on(path):
    llm = mock_llm("é")
    seq = llm.sequence("p")
    assert seq.step(**GREEDY).text == ""
    seq.save(path)
    assert llm.restore(path).step(**GREEDY).text == "é"


def test_a_random_stream_far_down(path):
    llm = mock_llm(flat)
    seq = llm.sequence("p")
    seq.random = RandomStream(5, 3, draws=10**15 + 2)
    seq.save(path)
    restored = llm.restore(path)
    assert [restored.random.uniform() for _ in range(9)] == [seq.random.uniform() for _ in range(9)]


@pytest.mark.parametrize("options", [{"repack": False}, {"threads": 1}, {"cells": 200}])
def test_what_a_file_does_not_depend_on(path, options):
    llm, other = tiny_llm("qwen2"), tiny_llm("qwen2", **options)
    seq = llm.sequence(prompt(30))
    seq.save(path)
    np.testing.assert_array_equal(other.restore(path).logits, seq.logits)


@pytest.mark.parametrize("piece", [1, 1000])
def test_in_pieces_of_any_size(path, monkeypatch, piece):
    monkeypatch.setattr(snapshot, "PIECE_BYTES", piece)
    llm = tiny_llm()
    seq = llm.sequence(prompt(30))
    seq.save(path)
    np.testing.assert_array_equal(llm.restore(path).logits, seq.logits)


# -- what cannot be --


def test_a_full_cache_changes_nothing(path):
    llm = mock_llm(flat, cells=20)
    seq = llm.sequence("x" * 12)
    seq.save(path)
    with pytest.raises(CacheFull, match="12 cells are needed and 8 of 20 are free"):
        llm.restore(path)
    assert llm.cache.stats().held == 12
    seq.close()
    assert llm.restore(path).text == "x" * 12
    llm.cells.check()


def test_no_room_to_compute_what_is_pending(path):
    llm = mock_llm(flat, cells=20)
    held = llm.sequence("x" * 12)
    assert held.logits.shape == (258,)
    seq = llm.sequence("y" * 9)
    with pytest.raises(CacheFull):
        seq.save(path)
    assert not path.exists()
    assert (seq.n_pending, llm.cache.stats().held) == (9, 12)


def test_another_model(path):
    tiny_llm("llama").sequence(prompt(5)).save(path)
    for other in (tiny_llm("llama-linear"), mock_llm("Hi")):
        with pytest.raises(SnapshotError, match="saved by another model"):
            other.restore(path)
        assert other.cells.n_used == 0


def test_another_kind_of_cache(path):
    tiny_llm(kind="f16").sequence(prompt(5)).save(path)
    for kind in ("q8", "reference"):
        llm = tiny_llm(kind=kind)
        with pytest.raises(SnapshotError, match=f"kind 'native f16, .*', not '.*{kind}"):
            llm.restore(path)
        assert llm.cache.stats().held == 0


def test_a_smaller_context(path):
    tiny_llm().sequence(prompt(40)).save(path)
    with pytest.raises(SnapshotError, match="40 tokens, and the context has 32"):
        tiny_llm(cells=32).restore(path)


def test_damaged_cells_leave_none_behind(path):
    llm = tiny_llm()
    llm.sequence(prompt(30)).save(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)
    used = llm.cache.stats().held
    with pytest.raises(SnapshotError, match="damaged: the cells"):
        llm.restore(path)
    assert llm.cache.stats().held == used
    llm.cells.check()


def test_a_failing_backend_leaves_none_behind(path):
    llm = mock_llm(flat)
    seq = llm.sequence("abc")
    seq.save(path)
    kept = path.read_bytes()

    def fail(*arguments):
        raise MemoryError

    llm.backend.write_cells = llm.backend.read_cells = fail
    with pytest.raises(MemoryError):
        llm.restore(path)
    with pytest.raises(MemoryError):
        seq.save(path)
    assert path.read_bytes() == kept
    assert llm.cache.stats().held == 3
    assert len(llm.cells.sequences) == 1
    llm.cells.check()


def test_a_failed_save_leaves_the_old_file(path, monkeypatch):
    llm = mock_llm(flat)
    llm.sequence("old").save(path)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SnapshotError, match="cannot be written: No space left on device"):
        llm.sequence("new").save(path)
    assert llm.restore(path).text == "old"
    assert not list(path.parent.glob(".*part"))


def test_folders_that_cannot_be_written(tmp_path):
    seq = mock_llm(flat).sequence("abc")
    with pytest.raises(SnapshotError, match="cannot be written: No such file or directory"):
        seq.save(tmp_path / "no" / "such.safetensors")
    if os.getuid():  # to root, every folder is writable
        tmp_path.chmod(0o500)
        with pytest.raises(SnapshotError, match="cannot be written: Permission denied"):
            seq.save(tmp_path / "saved.safetensors")
        tmp_path.chmod(0o700)
    with pytest.raises(InvalidRequest, match="path must be"):
        seq.save(None)
    assert seq.step(**OPEN)


def test_what_is_closed(path):
    llm = mock_llm(flat)
    seq = llm.sequence("abc")
    seq.save(path)
    seq.close()
    with pytest.raises(InvalidRequest, match="closed"):
        seq.save(path)
    llm.close()
    with pytest.raises(InvalidRequest, match="closed"):
        llm.restore(path)


def test_one_that_another_thread_closes_just_before(path):
    """Before the lock is taken, that is: what has been asked before holds no more."""
    llm = mock_llm("abc")
    seq = llm.sequence("pending tokens")
    lock = llm.engine.lock

    class Late:
        def __enter__(self):
            llm.engine.lock = lock
            other = threading.Thread(target=seq.close)
            other.start()
            other.join()
            lock.acquire()

        def __exit__(self, *_):
            lock.release()

    llm.engine.lock = Late()
    with pytest.raises(InvalidRequest, match="closed"):
        seq.save(path)
    assert llm.cache.stats().held == 0


def test_a_model_without_a_fingerprint(path):
    llm = LLM(tiny_llm().backend, byte_tokenizer())
    for use in (lambda: llm.sequence([1]).save(path), lambda: llm.restore(path)):
        with pytest.raises(Unsupported, match=r"no fingerprint.*stretto\.load"):
            use()


def test_others_step_while_one_is_saved(path, monkeypatch):
    # The saved sequence even closes in the middle: its cells stay as they are until they are written.
    monkeypatch.setattr(snapshot, "PIECE_BYTES", 1)
    llm, tokens = tiny_llm(cells=128), prompt(30)
    seq, other = llm.sequence(tokens), llm.sequence(prompt(5))
    expected = seq.logits.copy()
    read, started, go_on = llm.backend.read_cells, threading.Event(), threading.Event()

    def slow(cells):
        data = read(cells)
        if cells[0] == llm.cells.view(holder())[3]:
            started.set()
            llm.engine.lock.release()
            go_on.wait(60)
            llm.engine.lock.acquire()
        return data

    def holder():
        return max(llm.cells.sequences)

    monkeypatch.setattr(llm.backend, "read_cells", slow)
    saving = threading.Thread(target=seq.save, args=(path,))
    saving.start()
    assert started.wait(60)
    seq.close()
    for _ in range(20):
        other.step(**OPEN)
    go_on.set()
    saving.join()
    assert len(llm.cells.sequences) == 1
    np.testing.assert_array_equal(llm.restore(path).logits, expected)


# -- a real model --


def test_smollm2(smollm2_path, path):
    with stretto.load(smollm2_path, cells=256) as llm:
        seq = llm.sequence("The quick brown fox", seed=3)
        seq.step()
        seq.save(path)
        expected, row = [seq.step().text for _ in range(8)], seq.logits.copy()
        fingerprint = llm.engine.fingerprint()
    with stretto.load(smollm2_path, cells=64, repack=False, threads=1) as llm:
        assert llm.engine.fingerprint() == fingerprint
        seq = llm.restore(path)
        assert [seq.step().text for _ in range(8)] == expected
        np.testing.assert_array_equal(seq.logits, row)
    with (
        stretto.load(smollm2_path, cells=64, kv="q8") as llm,
        pytest.raises(SnapshotError, match=r"kind 'native f16.*not 'native q8"),
    ):
        llm.restore(path)
