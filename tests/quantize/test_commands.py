"""`stretto quantize`, `convert` and `imatrix`."""

from pathlib import Path

import pytest

from small_llama import metadata, tensors
from stretto.cli import main
from stretto.cli.quantize import read_types
from stretto.quantize import ImportanceMatrix
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf

FOLDER = Path(__file__).parent.parent / "data" / "folders" / "llama"


@pytest.fixture
def stretto(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


def test_quantize_writes_a_file_and_says_what_is_in_it(stretto, tmp_path):
    source, target = tmp_path / "in.gguf", tmp_path / "out.gguf"
    write_gguf(source, metadata(), tensors())
    code, output, errors = stretto(
        "quantize", source, target, "q4_k_m", "--threads", "1", "--tensor-type", "attn_k=q8_0"
    )
    assert (code, errors) == (0, "")
    assert "2 Q8_0" in output
    with GGUF(target) as file:
        assert file.metadata["general.file_type"] == 15


def test_a_file_that_exists_is_replaced_by_force_only(stretto, tmp_path):
    source, target = tmp_path / "in.gguf", tmp_path / "out.gguf"
    write_gguf(source, metadata(), tensors())
    target.write_bytes(b"old")
    code, _, errors = stretto("quantize", source, target, "q8_0", "--threads", "1")
    assert code == 2
    assert (
        errors == f"error: {target} exists; choose another file, or replace it with --force (replace=True)\n"
    )
    assert target.read_bytes() == b"old"
    code, _, errors = stretto("quantize", source, target, "q8_0", "--threads", "1", "--force")
    assert (code, errors) == (0, "")
    with GGUF(target) as file:
        assert file.metadata["general.file_type"] == 7
    code, _, errors = stretto("quantize", source, source, "q8_0", "--force")
    assert (code, "is the model itself" in errors) == (2, True)


def test_errors_are_one_line(stretto, tmp_path):
    source = tmp_path / "in.gguf"
    write_gguf(source, metadata(), tensors())
    code, _, errors = stretto("quantize", source, tmp_path / "out.gguf", "q77")
    assert code == 2
    assert errors.startswith("error: the mix 'q77' is not known; use one of f32, f16")
    code, _, errors = stretto("quantize", source, tmp_path / "out.gguf", "q4_0", "--tensor-type", "wrong")
    assert (code, "is not PATTERN=FORMAT" in errors) == (2, True)
    code, _, errors = stretto("convert", source, tmp_path / "out.gguf")
    assert (code, "is no folder" in errors) == (2, True)
    assert not (tmp_path / "out.gguf").exists()


def test_patterns_may_contain_equals_signs():
    assert read_types(["a=b=q4_0"]) == [("a=b", "q4_0")]


def test_a_folder_is_converted_measured_and_quantised(stretto, tmp_path):
    made, matrix = tmp_path / "made.gguf", tmp_path / "imatrix.gguf"
    code, output, errors = stretto("convert", FOLDER, made, "--type", "f32", "--threads", "1")
    assert (code, errors) == (0, "")
    assert "F32" in output
    text = tmp_path / "text.txt"
    text.write_text("some words to read, again and again. " * 20)
    code, output, errors = stretto(
        "imatrix", made, text, "--out", matrix, "--chunk", "16", "--chunks", "3", "--threads", "1"
    )
    assert (code, errors) == (0, "")
    assert "3 chunks of 16 tokens" in output
    found = ImportanceMatrix.read(matrix)
    assert found.datasets == ("text.txt",)
    code, _, errors = stretto("quantize", made, tmp_path / "out.gguf", "f16", "--imatrix", matrix)
    assert (code, errors) == (0, "")
    with GGUF(tmp_path / "out.gguf") as file:
        assert file.metadata["quantize.imatrix.chunks_count"] == 3


def test_texts_that_are_not_utf8_are_refused(stretto, tmp_path):
    (tmp_path / "text.txt").write_bytes(b"\xff\xfe")
    code, _, errors = stretto("imatrix", FOLDER, tmp_path / "text.txt", "--out", tmp_path / "out.gguf")
    assert (code, "is not UTF-8" in errors) == (2, True)
