"""Files in other formats: content, metadata, atomic writes, what is refused."""

import errno
import os

import numpy as np
import pytest

from small_llama import N_EMBD, N_FF, VOCABULARY, metadata, tensors
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest, ModelError
from stretto.models import read_spec
from stretto.quantize import ImportanceMatrix, quantize_model
from stretto.quantize.imatrix import Inputs
from stretto.weights.formats import Format, quantize
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf, write_split
from tiny_models import text_logits


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.gguf"
    write_gguf(path, metadata(), tensors())
    return path


def logits(path):
    with GGUF(path) as file:
        backend = NativeBackend(file, read_spec(file), 64, 1, "f32", precision="high")
        found = text_logits(backend, np.arange(24) * 5 % VOCABULARY)
        backend.close()
        return found


@pytest.mark.parametrize(("mix", "limit"), [("q8_0", 0.05), ("q6_k", 0.15), ("q4_k_m", 0.5), ("f16", 1e-6)])
def test_a_quantised_file_gives_nearly_the_same_logits(source, tmp_path, mix, limit):
    written = quantize_model(source, tmp_path / "out.gguf", mix, threads=2)
    exact, found = logits(source), logits(written.path)
    assert np.sqrt(((found - exact) ** 2).mean() / (exact**2).mean()) < limit
    assert written.nbytes == written.path.stat().st_size


def test_tensors_are_those_of_the_writer_and_metadata_is_kept(source, tmp_path):
    quantize_model(source, tmp_path / "out.gguf", "q4_0", threads=1)
    with GGUF(source) as before, GGUF(tmp_path / "out.gguf") as after:
        name = "blk.1.ffn_down.weight"
        expected = quantize(before.tensors[name].dequantize(), Format.Q4_0)
        assert np.array_equal(after.tensors[name].data, expected)
        assert after.metadata["general.file_type"] == 2
        assert after.metadata["general.quantization_version"] == 2
        assert after.alignment == 64
        changed = {"general.file_type", "general.quantization_version"}
        assert {k: v for k, v in after.metadata.items() if k not in changed} == {
            k: v for k, v in before.metadata.items() if k not in changed
        }
        assert np.array_equal(
            after.tensors["output_norm.weight"].data, before.tensors["output_norm.weight"].data
        )


def test_bytes_do_not_depend_on_threads(source, tmp_path):
    for threads in (1, 3):
        quantize_model(source, tmp_path / f"{threads}.gguf", "q5_k_m", threads=threads)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()


def test_split_models_become_one_file(source, tmp_path):
    with GGUF(source) as file:
        parts = write_split(
            tmp_path / "split.gguf", file.metadata, file.tensors, 3, types=file.metadata.types
        )
    quantize_model(parts[0], tmp_path / "joined.gguf", "q4_k_m", threads=1)
    quantize_model(source, tmp_path / "whole.gguf", "q4_k_m", threads=1)
    with GGUF(tmp_path / "joined.gguf") as joined, GGUF(tmp_path / "whole.gguf") as whole:
        assert "split.count" not in joined.metadata
        for name, tensor in whole.tensors.items():
            assert np.array_equal(tensor.data, joined.tensors[name].data)


def test_progress_ends_at_all_numbers(source, tmp_path):
    seen = []
    quantize_model(source, tmp_path / "out.gguf", "q8_0", threads=1, progress=lambda *at: seen.append(at))
    total = seen[-1][1]
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_overrides_decide(source, tmp_path):
    written = quantize_model(
        source, tmp_path / "out.gguf", "q4_k_m", tensor_types=[(r"ffn_(up|gate)", "q5_1")], threads=1
    )
    assert written.formats["Q5_1"] == 4
    with pytest.raises(InvalidRequest, match=r"'\(' is no regular expression"):
        quantize_model(source, tmp_path / "other.gguf", "q4_0", tensor_types=[("(", "q4_0")])
    with pytest.raises(InvalidRequest, match="cannot write the format 'q99'"):
        quantize_model(source, tmp_path / "other.gguf", "q4_0", tensor_types=[("a", "q99")])


def test_quantised_sources_are_refused_unless_allowed(source, tmp_path):
    quantize_model(source, tmp_path / "q8.gguf", "q8_0", threads=1)
    with pytest.raises(InvalidRequest, match=r"is Q8_0 already.*--allow-requantize") as caught:
        quantize_model(tmp_path / "q8.gguf", tmp_path / "q4.gguf", "q4_0")
    assert caught.value.param == "allow_requantize"
    assert not (tmp_path / "q4.gguf").exists()
    written = quantize_model(
        tmp_path / "q8.gguf", tmp_path / "q4.gguf", "q4_0", allow_requantize=True, threads=1
    )
    assert written.formats["Q4_0"] == 14


def test_importance_is_used_and_named(source, tmp_path):
    rng = np.random.default_rng(3)
    inputs = {
        f"blk.{i}.{name}.weight": Inputs(
            rng.random((1, columns), np.float32) ** 4 * 100, np.array([50], np.float32)
        )
        for i in range(2)
        for name, columns in (("ffn_up", N_EMBD), ("ffn_down", N_FF))
    }
    ImportanceMatrix(inputs, ("some text",), 3, 512).write(tmp_path / "imatrix.gguf")
    read = ImportanceMatrix.read(tmp_path / "imatrix.gguf")
    assert (read.datasets, read.chunks, read.chunk_tokens) == (("some text",), 3, 512)
    name = "blk.1.ffn_down.weight"
    assert np.array_equal(read.inputs[name].sums, inputs[name].sums)
    quantize_model(source, tmp_path / "out.gguf", "q4_k_s", imatrix=tmp_path / "imatrix.gguf", threads=1)
    with GGUF(tmp_path / "out.gguf") as file, GGUF(source) as before:
        assert file.metadata["quantize.imatrix.entries_count"] == 4
        assert file.metadata["quantize.imatrix.chunks_count"] == 3
        assert file.metadata["quantize.imatrix.dataset"] == "some text"
        weights = read.weights(name)
        numbers = before.tensors[name].dequantize()
        plain = quantize(numbers, file.tensors[name].format)
        expected = quantize(numbers, file.tensors[name].format, weights[0])
        assert np.array_equal(file.tensors[name].data, expected)
        assert not np.array_equal(plain, expected)


def test_importance_of_another_model_is_refused(source, tmp_path):
    wrong = {"blk.0.ffn_up.weight": Inputs(np.ones((1, 32), np.float32), np.ones(1, np.float32))}
    ImportanceMatrix(wrong).write(tmp_path / "wrong.gguf")
    with pytest.raises(ModelError, match=r"32 columns, but the model's tensor has 1 of 256.*another model"):
        quantize_model(source, tmp_path / "out.gguf", "q4_0", imatrix=tmp_path / "wrong.gguf")
    with pytest.raises(ModelError, match="is no importance matrix"):
        quantize_model(source, tmp_path / "out.gguf", "q4_0", imatrix=source)


def test_damaged_importance_is_refused(tmp_path):
    good, path = np.ones((1, 32), np.float32), tmp_path / "damaged.gguf"
    for arrays, reason in (
        ({"a.in_sum2": good}, "counts are missing"),
        ({"a.in_sum2": good, "a.counts": np.ones((2, 1), np.float32)}, "2 counts for 1 sums"),
        ({"a.in_sum2": -good, "a.counts": np.ones((1, 1), np.float32)}, "negative or not finite"),
        ({"b": good}, "no sums"),
    ):
        write_gguf(path, {"general.type": "imatrix"}, arrays)
        with pytest.raises(ModelError, match=reason):
            ImportanceMatrix.read(path)


def test_experts_that_nothing_reached_count_evenly():
    sums = np.stack([np.arange(32), np.zeros(32)]).astype(np.float32)
    weights = ImportanceMatrix({"a": Inputs(sums, np.array([4, 0], np.float32))}).weights("a")
    assert weights[0].argmax() == 31
    assert (weights[1] == 1).all()


def test_numbers_that_are_not_finite_are_refused_and_nothing_is_left(tmp_path):
    made = tensors()
    made["blk.1.attn_q.weight"][200, 3] = np.inf
    write_gguf(tmp_path / "bad.gguf", metadata(), made)
    with pytest.raises(ModelError, match=r"blk.1.attn_q.weight.*row 200 holds NaN or infinity"):
        quantize_model(tmp_path / "bad.gguf", tmp_path / "out.gguf", "q4_0", threads=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.gguf"]


def test_a_full_disk_leaves_the_old_file(source, tmp_path, monkeypatch):
    target = tmp_path / "out.gguf"
    target.write_bytes(b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match="cannot be written: No space left on device"):
        quantize_model(source, target, "q4_0", replace=True, threads=1)
    assert target.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "source.gguf"]


def test_too_little_space_is_known_before_writing(source, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(ModelError, match=r"needs 0.0 GB, and 0.0 GB are free"):
        quantize_model(source, tmp_path / "out.gguf", "q4_0")
    assert not (tmp_path / "out.gguf").exists()


def test_interrupting_leaves_nothing(source, tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_model(source, tmp_path / "out.gguf", "q4_0", threads=1, progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.gguf"]


def test_a_model_is_not_written_over_itself(source):
    with pytest.raises(InvalidRequest, match="is the model itself"):
        quantize_model(source, source, "q4_0")
    with pytest.raises(ModelError, match="cannot be written"):
        quantize_model(source, source.parent / "missing" / "out.gguf", "q4_0")
