"""A model or a saved sequence whose file is cut while it is used: `ModelError`, and the process goes on."""

import gc
import shutil

import numpy as np
import pytest

import stretto
from stretto.cache.snapshot import SnapshotFile
from stretto.engine.saving import expected_by
from stretto.errors import ModelError, SnapshotError
from stretto.testing import mock_llm


def test_a_model_that_reads_its_weights_from_a_file_that_is_cut(smollm2_path, tmp_path):
    path = tmp_path / "model.gguf"
    shutil.copyfile(smollm2_path, path)
    with stretto.load(path, backend="native", threads=2, cells=64, repack=False) as llm:
        before = llm.generate("Hello", max_tokens=3, temperature=0).text
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 4)
        for _ in range(2):  # each time, not just the first
            with pytest.raises(ModelError, match="was cut or overwritten"):
                llm.generate("Goodbye", max_tokens=3, temperature=0)
        llm.cells.check()
        with stretto.load(smollm2_path, backend="native", threads=2, cells=64) as other:
            assert other.generate("Hello", max_tokens=3, temperature=0).text == before


def test_a_packed_model_needs_its_file_no_more(smollm2_path, tmp_path):
    path = tmp_path / "model.gguf"
    shutil.copyfile(smollm2_path, path)
    with stretto.load(path, backend="native", threads=2, cells=64) as llm:
        before = llm.generate("Hello", max_tokens=3, temperature=0).text
        with path.open("r+b") as file:
            file.truncate(5000)
        llm.cache.clear()
        assert llm.generate("Hello", max_tokens=3, temperature=0).text == before
        with llm.sequence("Hello") as sequence:
            sequence.save(tmp_path / "saved.safetensors")  # needs the fingerprint of the whole file
        llm.restore(tmp_path / "saved.safetensors").close()


def test_a_model_whose_file_is_cut_before_its_weights_are_packed(smollm2_path, tmp_path, monkeypatch):
    monkeypatch.setattr("stretto.backends.native_weights.DEFERRED_BYTES", 0)
    monkeypatch.setattr("stretto.backends.native_weights.Packing.start", lambda packing: None)
    path = tmp_path / "model.gguf"
    shutil.copyfile(smollm2_path, path)
    with stretto.load(path, backend="native", threads=2, cells=64) as llm:
        monkeypatch.undo()
        assert llm.backend.decoder.n_deferred
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 4)
        llm.backend._packing.start()
        llm.backend.settle()
        gc.collect()
        for _ in range(2):  # what was read as zeros is packed, and must not be used
            with pytest.raises(ModelError, match="was cut or overwritten"):
                llm.generate("Hello", max_tokens=3, temperature=0)


def test_a_saved_sequence_that_is_cut_while_it_is_read(tmp_path):
    path = tmp_path / "saved.safetensors"
    with mock_llm("abc", cells=1024) as llm:
        with llm.sequence("x" * 1000) as sequence:
            sequence.save(path)
        engine = llm.engine
        with SnapshotFile(path, expected_by(engine.runner, engine.fingerprint)) as file:
            with path.open("r+b") as handle:
                handle.truncate(path.stat().st_size - 3000)
            with pytest.raises(SnapshotError, match="it was cut off"):
                np.concatenate([data for _, data in file.pieces()])
        with pytest.raises(SnapshotError):
            llm.restore(path)
        llm.cells.check()
