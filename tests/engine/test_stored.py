"""Prefixes on disk: a new model finds what an earlier one computed, and goes on with the same bits."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recurrent_mock import recurrent_llm
from stretto import Limits
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.disk import BLOCK_TOKENS, HEAD_BYTES, DiskStore
from stretto.cache.prefix import COMMON
from stretto.engine.scheduler import Scheduler
from stretto.engine.stored import StoredPrefixes
from stretto.errors import QueueFull
from stretto.llm import LLM
from stretto.loading import disk_cache
from stretto.loading.disk_cache import describe_computation
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import tiny_file, tiny_spec

FOLDER = Path(__file__).parent.parent / "data" / "tiny"
TOKENS = np.random.default_rng(1).integers(0, 96, 300).tolist()
GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}


def keep(llm, folder, identity="model", **limits):
    llm.engine.keep_on_disk(DiskStore(folder, **limits), lambda: identity)
    return llm


def tiny_llm(kind="f16", name="llama", cells=512):
    file, spec = tiny_file(name), replace(tiny_spec(name), context_length=1024)
    if kind == "reference":
        backend = ReferenceBackend(file, spec, cells)
    else:
        backend = NativeBackend(file, spec, cells, 2, kind)
    return LLM(backend, byte_tokenizer(), fingerprint=file.fingerprint())


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "prefixes"


def until(done):
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def stored_tokens(llm):
    return llm.cache.disk().tokens_read


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("kind", ["f16", "q8"])
def test_after_a_restart_the_bits_are_those_of_computing(folder, kind, name):
    with tiny_llm(kind, name) as plain, plain.sequence(TOKENS) as sequence:
        wanted = sequence.logits.copy()
        continued = plain.generate(TOKENS, **GREEDY)
    with keep(tiny_llm(kind, name), folder) as first:
        first.generate(TOKENS, **GREEDY)
    with keep(tiny_llm(kind, name), folder) as second:
        result = second.generate(TOKENS, **GREEDY)
        assert result.usage.cached_tokens == 256
        assert result.tokens == continued.tokens
    with keep(tiny_llm(kind, name), folder) as third, third.sequence(TOKENS) as sequence:
        assert (sequence.logits == wanted).all()
        assert stored_tokens(third) == 256
        third.cells.check()


def test_the_reference_backend_reads_the_cells_that_it_wrote(folder):
    with keep(tiny_llm("reference"), folder) as first:
        first.generate(TOKENS, **GREEDY)
        view = first.engine.cells.view(first.engine.cells.sequences[0])
        wanted = first.backend.read_cells(view[:256])
    with keep(tiny_llm("reference"), folder) as second:
        assert second.generate(TOKENS, **GREEDY).usage.cached_tokens == 256
        view = second.engine.cells.view(second.engine.cells.sequences[0])
        assert (second.backend.read_cells(view[:256]) == wanted).all()


def test_what_was_generated_is_kept_too(folder):
    with keep(tiny_llm(), folder) as first:
        text = [*TOKENS, *first.generate(TOKENS, temperature=0, max_tokens=100, ignore_eos=True).tokens]
    with keep(tiny_llm(), folder) as second:
        assert second.generate([*text, 1], **GREEDY).usage.cached_tokens == 384
    with tiny_llm() as plain, plain.sequence([*text, 1]) as sequence:
        wanted = sequence.logits.copy()
    with keep(tiny_llm(), folder) as third, third.sequence([*text, 1]) as sequence:
        assert (sequence.logits == wanted).all()


def test_cells_that_are_there_are_not_read_again(folder):
    with keep(tiny_llm(), folder) as first:
        first.generate(TOKENS, **GREEDY)
    with keep(tiny_llm(), folder) as second:
        second.generate(TOKENS[:140], **GREEDY)
        assert stored_tokens(second) == 128
        assert second.generate(TOKENS, **GREEDY).usage.cached_tokens == 256
        assert stored_tokens(second) == 256
        second.generate(TOKENS, **GREEDY)
        assert stored_tokens(second) == 256


def test_blocks_are_written_in_the_background(folder):
    with keep(tiny_llm(), folder) as first:
        first.generate(TOKENS, **GREEDY)
        until(lambda: first.cache.disk().usage.blocks == 4)
        assert first.cache.disk().blocks_written == 4
        first.generate(TOKENS[:-1], **GREEDY)
    assert DiskStore(folder).usage().blocks == 4


def test_bytes_written_are_those_of_the_new_cells(folder):
    with keep(tiny_llm(), folder) as llm:
        llm.generate(TOKENS, **GREEDY)
        cell_bytes = llm.backend.cell_bytes
    nbytes = DiskStore(folder).usage().nbytes
    assert 256 * cell_bytes < nbytes < 1.2 * 256 * cell_bytes + 400


def test_evicted_cells_are_written(folder):
    texts = [np.random.default_rng(seed).integers(0, 96, 300).tolist() for seed in range(6)]
    with keep(tiny_llm(), folder) as first:
        for text in texts:
            first.generate(text, **GREEDY)
    with keep(tiny_llm(cells=4096), folder) as second:
        assert [second.generate(text, **GREEDY).usage.cached_tokens for text in texts] == [256] * 6


def test_salts_and_adapters_share_nothing(folder):
    with keep(tiny_llm(), folder) as first:
        first.generate(TOKENS, cache_salt="a", **GREEDY)
    with keep(tiny_llm(), folder) as second:
        assert second.generate(TOKENS, cache_salt="b", **GREEDY).usage.cached_tokens == 0
        assert second.generate(TOKENS, **GREEDY).usage.cached_tokens == 0
        assert second.generate(TOKENS, cache_salt="a", **GREEDY).usage.cached_tokens == 256
    with keep(tiny_llm(), folder) as third:
        third.load_steering("calm", {0: np.ones(third.spec.n_embd, np.float32)})
        assert third.generate(TOKENS, adapter="calm", cache_salt="a", **GREEDY).usage.cached_tokens == 0
    with keep(tiny_llm(), folder) as fourth:
        fourth.load_steering("calmer", {0: np.ones(fourth.spec.n_embd, np.float32)})
        found = fourth.generate(TOKENS, adapter="calmer", cache_salt="a", **GREEDY)
        assert found.usage.cached_tokens == 256  # the same vectors by another name
        fourth.load_steering("other", {0: np.full(fourth.spec.n_embd, 2, np.float32)})
        found = fourth.generate(TOKENS, adapter="other", cache_salt="a", **GREEDY)
        assert found.usage.cached_tokens == 0


def test_what_else_computes_finds_nothing(folder):
    with keep(tiny_llm(), folder, "one") as first:
        first.generate(TOKENS, **GREEDY)
    with keep(tiny_llm(), folder, "another") as second:
        assert second.generate(TOKENS, **GREEDY).usage.cached_tokens == 0


def test_the_identity_names_all_that_bits_depend_on(monkeypatch):
    def identity(llm, fingerprint="model"):
        return describe_computation(llm.backend, [fingerprint])

    with tiny_llm() as llm, tiny_llm() as same:
        wanted = identity(llm)
        assert identity(same) == wanted
        assert identity(llm, "another") != wanted
        monkeypatch.setattr("stretto.loading.disk_cache._hash_code", lambda: "another build")
        assert identity(llm) != wanted
        monkeypatch.undo()
        monkeypatch.setattr(NativeBackend, "kernels", "another set")
        assert identity(llm) != wanted
    others = [("q8", "llama"), ("reference", "llama"), ("f16", "qwen3")]
    for kind, name in others:
        with tiny_llm(kind, name) as other:
            assert identity(other) != wanted


def test_the_identity_depends_on_all_code_that_makes_numbers(monkeypatch):
    read, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or read_bytes(path))
    before = disk_cache._hash_code.__wrapped__()
    package = Path(disk_cache.__file__).parents[1]
    folders = {path.relative_to(package).parts[0] for path in read if path.suffix == ".py"}
    assert folders >= {"audio", "backends", "loading", "models", "quantize", "vision", "weights"}
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: read_bytes(path) + b"#" * (path.parent.name == "quantize")
    )
    assert disk_cache._hash_code.__wrapped__() != before  # which weights a mix gives is Python code


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_damaged_block_and_those_behind_it_are_computed(folder, number):
    with keep(tiny_llm(), folder) as first:
        first.generate(TOKENS, **GREEDY)
    store = DiskStore(folder)
    root = store.root("model, adapters None")
    path = folder / root.owner / list(store.chain(root, TOKENS))[number].hex()
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with tiny_llm() as plain, plain.sequence(TOKENS) as sequence:
        wanted = sequence.logits.copy()
    with keep(tiny_llm(), folder) as second:
        with second.sequence(TOKENS) as sequence:
            assert (sequence.logits == wanted).all()
        assert stored_tokens(second) == number * BLOCK_TOKENS
        second.cells.check()
    with keep(tiny_llm(), folder) as third:  # the damaged one was written again
        assert third.generate(TOKENS, **GREEDY).usage.cached_tokens == 256


def test_without_room_less_is_read(folder):
    with keep(tiny_llm(), folder) as first:
        first.generate(TOKENS, **GREEDY)
    with keep(tiny_llm(cells=310), folder) as second:
        held = second.sequence(TOKENS[::-1][:150])
        held.logits  # noqa: B018  # it computes
        assert second.generate(TOKENS[:140], **GREEDY).usage.cached_tokens == 128
        held.close()
        second.cells.check()


def test_equal_prompts_of_several_threads_are_read_once(folder):
    with keep(tiny_llm(cells=4096), folder) as first:
        wanted = first.generate(TOKENS, **GREEDY).tokens
    found = []
    with keep(tiny_llm(cells=4096), folder) as second:
        threads = [
            threading.Thread(target=lambda: found.append(second.generate(TOKENS, **GREEDY))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert stored_tokens(second) == 256
        second.cells.check()
    assert [one.tokens for one in found] == [wanted] * 6
    assert {one.usage.cached_tokens for one in found} <= {256, 299}  # 299 of one that had ended


def test_a_full_or_broken_store_disturbs_nobody(folder):
    with keep(tiny_llm(), folder, max_bytes=100) as llm:
        wanted = llm.generate(TOKENS, **GREEDY).tokens
    assert DiskStore(folder).usage().blocks == 0
    with keep(tiny_llm(), folder) as llm:
        folder.rename(folder.with_name("gone"))
        assert llm.generate(TOKENS, **GREEDY).tokens == wanted


def test_what_is_forgotten_is_gone_from_disk_too(folder):
    with keep(tiny_llm(cells=1024), folder) as llm:
        llm.generate(TOKENS, **GREEDY)
        llm.generate(TOKENS[::-1], **GREEDY)
        until(lambda: llm.cache.disk().usage.blocks == 8)
        llm.cache.forget(TOKENS[:200])
        assert llm.cache.disk().usage.blocks == 4
    with keep(tiny_llm(), folder) as second:
        assert second.generate(TOKENS, **GREEDY).usage.cached_tokens == 0
        assert second.generate(TOKENS[::-1], **GREEDY).usage.cached_tokens == 256


def test_what_is_forgotten_while_it_is_written_stays_off_the_disk(folder, monkeypatch):
    reading, go_on = threading.Event(), threading.Event()
    read = StoredPrefixes._read_parked

    def slow(self, *what):
        data = read(self, *what)
        reading.set()
        assert go_on.wait(60)
        return data

    with keep(tiny_llm(cells=1024), folder) as llm:
        monkeypatch.setattr(StoredPrefixes, "_read_parked", slow)
        llm.generate(TOKENS, **GREEDY)
        assert reading.wait(60)  # a block has been copied, and has no file yet
        llm.cache.forget(TOKENS[:200])
        monkeypatch.undo()
        go_on.set()
        llm.generate(TOKENS[::-1], **GREEDY)
        until(lambda: llm.cache.disk().usage.blocks == 4)
    with keep(tiny_llm(), folder) as second:
        assert second.generate(TOKENS, **GREEDY).usage.cached_tokens == 0


def test_a_thread_that_died_or_cannot_start_loses_no_request(folder, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with keep(tiny_llm(cells=1024), folder) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            wanted = llm.generate(TOKENS, **GREEDY).tokens
        llm.generate(TOKENS[::-1], **GREEDY)
        until(lambda: llm.cache.disk().usage.blocks == 8)
    with keep(tiny_llm(), folder) as second, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        result = second.generate(TOKENS, **GREEDY)
        assert (result.tokens, result.usage.cached_tokens) == (wanted, 0)


@pytest.mark.parametrize("refused", [{1}, {1, 2}])
def test_a_block_that_no_thread_reads_has_no_other_in_its_place(folder, monkeypatch, refused):
    class Pool(ThreadPoolExecutor):
        asked = -1

        def submit(self, *what):
            self.asked += 1
            if self.asked in refused:
                raise RuntimeError("can't start new thread")
            return super().submit(*what)

    with tiny_llm() as plain, plain.sequence(TOKENS) as sequence:
        wanted = sequence.logits.copy()
    with keep(tiny_llm(), folder) as first:
        first.generate(TOKENS, **GREEDY)
    with keep(tiny_llm(), folder) as second:
        monkeypatch.setattr("stretto.engine.stored.ThreadPoolExecutor", Pool)
        with second.sequence(TOKENS) as sequence:
            assert (sequence.logits == wanted).all()
        assert stored_tokens(second) >= BLOCK_TOKENS


def test_blocks_that_memory_uses_are_evicted_last(folder):
    with tiny_llm() as probe:
        size = 64 * probe.backend.cell_bytes + HEAD_BYTES
    texts = [[*TOKENS[:128], *np.random.default_rng(seed).integers(0, 96, 64).tolist()] for seed in range(9)]
    with keep(tiny_llm(cells=2048), folder, max_bytes=6 * size) as llm:
        for text in texts:
            n = llm.cache.disk().blocks_written
            llm.generate([*text, 1], **GREEDY)
            until(lambda n=n: llm.cache.disk().blocks_written > n)
    store = DiskStore(folder)
    root = store.root("model, adapters None")
    assert all(store.has(root, key) for key in store.chain(root, TOKENS[:128]))


def test_blocks_of_a_prompt_that_is_asked_again_and_again_stay(folder):
    with tiny_llm() as probe:
        size = 64 * probe.backend.cell_bytes + HEAD_BYTES
    texts = [np.random.default_rng(seed).integers(0, 96, 65).tolist() for seed in range(2, 11)]
    with keep(tiny_llm(cells=2048), folder, max_bytes=6 * size) as llm:
        for text in (TOKENS[:129], *texts):
            n = llm.cache.disk().blocks_written
            llm.generate(text, **GREEDY)
            until(lambda n=n: llm.cache.disk().blocks_written > n)
            llm.generate(TOKENS[:129], **GREEDY)
        assert stored_tokens(llm) == 0
    store = DiskStore(folder)
    root = store.root("model, adapters None")
    assert all(store.has(root, key) for key in store.chain(root, TOKENS[:128]))


def test_nothing_is_read_for_a_request_that_is_refused(folder, monkeypatch):
    with keep(tiny_llm(), folder) as first:
        first.generate(TOKENS, **GREEDY)
    with keep(tiny_llm(), folder) as second:
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "has_room", False)
            with pytest.raises(QueueFull):
                second.generate(TOKENS, **GREEDY)
        assert (second.metrics.refused, stored_tokens(second)) == (1, 0)
        assert second.generate(TOKENS, **GREEDY).usage.cached_tokens == 256


def test_a_sequence_with_cells_is_not_looked_for(folder, monkeypatch):
    asked = []
    has = DiskStore.has
    monkeypatch.setattr(DiskStore, "has", lambda self, *what: asked.append(what) or has(self, *what))
    with keep(tiny_llm(), folder) as first:
        first.generate(TOKENS, **GREEDY)
    with keep(tiny_llm(), folder) as second, second.sequence(TOKENS) as sequence:
        sequence.step(temperature=0)
        asked.clear()
        for _ in range(3):
            sequence.step(temperature=0)
        assert not asked


def test_forgetting_waits_for_no_other_process(folder, monkeypatch):
    monkeypatch.setattr("stretto.cache.disk.LOCK_SECONDS", 60)
    waiting, write = threading.Event(), DiskStore.write

    def told(self, *what):
        waiting.set()
        return write(self, *what)

    monkeypatch.setattr(DiskStore, "write", told)
    held = DiskStore(folder)._locked  # as by a process that was stopped in the middle of a block
    with keep(tiny_llm(cells=1024), folder) as llm, held():
        llm.generate(TOKENS, **GREEDY)
        assert waiting.wait(60)
        thread = threading.Thread(target=llm.cache.forget, args=(TOKENS[:200],))
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    assert DiskStore(folder).usage().blocks == 0


def test_restored_and_edited_sequences_are_not_kept(folder, tmp_path):
    with tiny_llm() as plain, plain.sequence(TOKENS) as sequence:
        sequence.save(tmp_path / "saved")
    with keep(tiny_llm(), folder) as first:
        first.restore(tmp_path / "saved").close()
        with first.sequence(TOKENS[::-1]) as sequence:
            assert len(sequence.logits)
            sequence.remove(130, 140, close=True)
    assert DiskStore(folder).usage().blocks == 2


def test_recurrent_layers_go_on_from_a_state_on_disk(folder):
    with recurrent_llm() as plain:
        wanted = plain.generate(TOKENS, **GREEDY)
    with keep(recurrent_llm(), folder) as first:
        assert first.generate(TOKENS, **GREEDY).tokens == wanted.tokens
    with keep(recurrent_llm(), folder) as second:
        result = second.generate(TOKENS, **GREEDY)
        assert result.tokens == wanted.tokens
        assert result.usage.cached_tokens == 256
        second.cells.check()
    with keep(recurrent_llm(), folder) as third:
        longer = third.generate([*TOKENS, *wanted.tokens, 5, 6, 7], **GREEDY)
        assert longer.usage.cached_tokens == 256
    with recurrent_llm() as plain:
        assert plain.generate([*TOKENS, *wanted.tokens, 5, 6, 7], **GREEDY).tokens == longer.tokens


def test_a_mock_without_cells_works(folder):
    with keep(mock_llm([1, 2, 3]), folder) as llm:
        llm.generate(TOKENS[:100], max_tokens=2)


HYBRID = [
    name
    for name in ("qwen35", "lfm2", "nemotron_h", "mamba2", "jamba", "kimi-linear", "rwkv7")
    if (FOLDER / f"{name}.gguf").exists()
]


@pytest.mark.parametrize("name", HYBRID)
def test_models_with_recurrent_layers_have_the_same_bits_after_a_restart(folder, name):
    def hybrid():
        spec = replace(tiny_spec(name), context_length=1024)
        backend = NativeBackend(tiny_file(name), spec, 512, 2, n_slots=9)
        limits = Limits(checkpoint_bytes=5 * backend.slot_bytes)
        return LLM(backend, byte_tokenizer(), fingerprint=lambda: name, limits=limits)

    text = [token % spec_vocabulary(name) for token in TOKENS]
    with hybrid() as plain, plain.sequence(text) as sequence:
        wanted = sequence.logits.copy()
    with keep(hybrid(), folder) as first:
        first.generate(text, **GREEDY)
    with keep(hybrid(), folder) as second, second.sequence(text) as sequence:
        assert (sequence.logits == wanted).all()
        assert stored_tokens(second) == 256
        second.cells.check()
    with keep(hybrid(), folder) as third:  # a state that is gone: all is computed
        states = sorted(folder.glob("*/*"), key=lambda path: path.stat().st_size)
        assert third.engine.stored._find(third.engine.stored._root(COMMON), text, 4)
        for path in states:
            if path.stat().st_size == third.backend.slot_bytes + HEAD_BYTES:
                path.unlink()
        with third.sequence(text) as sequence:
            assert (sequence.logits == wanted).all()
        assert stored_tokens(third) == 0


def spec_vocabulary(name):
    return tiny_spec(name).n_vocab


@pytest.mark.parametrize(("mode", "n_stored"), [("recompute", 256), ("shift", 0), ("heal", 0)])
def test_an_approximate_edit_is_not_stored(folder, mode, n_stored):
    with keep(tiny_llm(), folder) as first, first.sequence(TOKENS) as sequence:
        sequence.logits  # noqa: B018
        assert sequence.remove(20, 30, mode=mode).mode == mode
        sequence.logits  # noqa: B018
        tokens = sequence.tokens
    with tiny_llm() as plain:
        expected = plain.generate(tokens, **GREEDY)
    with keep(tiny_llm(), folder) as second:
        result = second.generate(tokens, **GREEDY)
        assert (result.usage.cached_tokens, result.tokens) == (n_stored, expected.tokens)


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_have_the_bits_of_computing(folder, seed):
    chance = random.Random(seed)
    stems = [chance.choices(range(96), k=200) for _ in range(3)]
    size = 64 * 700  # of some blocks: they are evicted too

    def prompt():
        stem = chance.choice(stems)
        return stem[: chance.choice((70, 130, 200))] + chance.choices(range(96), k=chance.randrange(1, 80))

    def made():
        return keep(tiny_llm(cells=400), folder, max_bytes=10 * size)

    llm = made()
    with tiny_llm(cells=400) as plain:
        for _ in range(40):
            operation = chance.choice(("prompt", "prompt", "several", "restart", "clear", "damage", "remove"))
            paths = [path for path in sorted(folder.glob("*/*")) if len(path.name) == 64]
            if operation == "prompt":
                text = prompt()
                plain.cache.clear()
                with llm.sequence(text) as mine, plain.sequence(text) as wanted:
                    assert (mine.logits == wanted.logits).all()
            elif operation == "several":
                texts = [prompt() for _ in range(3)]
                found = llm.generate(texts, cache_salt=chance.choice((None, "a")), **GREEDY)
                wanted = plain.generate(texts, **GREEDY)
                assert [one.tokens for one in found] == [one.tokens for one in wanted]
            elif operation == "restart":
                llm.close()
                llm = made()
            elif operation == "clear":
                llm.cache.clear()
            elif paths:
                path = chance.choice(paths)
                data = bytearray(path.read_bytes())
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                if operation == "damage":
                    path.write_bytes(data)
                else:
                    path.unlink()
            llm.cells.check()
    llm.close()
    assert DiskStore(folder).usage().nbytes <= 10 * size


def test_many_threads_beside_the_writer(folder):
    texts = [[*TOKENS[: 70 + 10 * (i % 4)], i] for i in range(24)]
    with tiny_llm(cells=2048) as plain:
        wanted = [plain.generate(text, **GREEDY).tokens for text in texts]
    for _ in range(2):
        with keep(tiny_llm(cells=300), folder) as llm, ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda text, llm=llm: llm.generate(text, **GREEDY).tokens, texts))
            llm.cells.check()
        assert found == wanted
