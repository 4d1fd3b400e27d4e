"""`stretto merge`: changed matrices in floats, all else as it was, all or nothing."""

import numpy as np
import pytest

from stretto.backends.reference import ReferenceBackend
from stretto.cli import main
from stretto.errors import InvalidRequest, ModelError
from stretto.models import read_spec
from stretto.weights.adapters import read_adapter
from stretto.weights.adapters.merging import merge_adapter
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from tiny_adapters import matrices, merged_file, random_pairs, target, write_adapter
from tiny_models import FOLDER, N_CELLS, text_logits, tiny_file, tiny_spec

TOKENS = [5, 17, 9, 33, 2]
Q = "blk.0.attn_q.weight"


def some_pairs(name="llama"):
    """Changes of a part of the matrices."""
    return random_pairs({one: shape for one, shape in matrices(name).items() if "ffn" not in one}, size=0.2)


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    return ended.value.code


def test_a_merged_file_is_the_model_with_the_adapter(tmp_path, capsys):
    pairs = some_pairs()
    adapter = write_adapter(tmp_path / "a.gguf", "llama", pairs)
    assert run("merge", FOLDER / "llama.gguf", f"{adapter}=0.5", tmp_path / "m.gguf", "--type", "f32") == 0
    assert f"{len(pairs)} matrices changed, rank 4" in capsys.readouterr().out
    expected = merged_file(tmp_path / "e.gguf", "llama", (pairs, 0.5))
    with GGUF(tmp_path / "m.gguf") as file:
        logits = text_logits(ReferenceBackend(file, read_spec(file), N_CELLS), TOKENS)
    wanted = text_logits(ReferenceBackend(expected, tiny_spec("llama"), N_CELLS), TOKENS)
    assert np.abs(logits - wanted).max() < 1e-4


def test_other_tensors_and_metadata_stay_as_they_are(tmp_path):
    pairs, source = some_pairs(), tiny_file("llama")
    path = write_adapter(tmp_path / "a.gguf", "llama", pairs)
    merge_adapter(source, read_adapter(path, target("llama")), tmp_path / "m.gguf")
    with GGUF(tmp_path / "m.gguf") as file:
        assert dict(file.metadata) == dict(source.metadata)
        assert list(file.tensors) == list(source.tensors)
        for name, tensor in source.tensors.items():
            found = file.tensors[name]
            if name in pairs:
                assert found.format is (Format.F32 if tensor.format is Format.F32 else Format.F16)
            else:
                assert found.format is tensor.format
                assert np.array_equal(found.data, tensor.data)


def test_nothing_is_left_of_a_merge_that_fails(tmp_path):
    pairs = {Q: tuple(1e6 * one for one in random_pairs({Q: matrices("llama")[Q]})[Q])}
    lora = read_adapter(write_adapter(tmp_path / "a.gguf", "llama", pairs), target("llama"))
    with pytest.raises(ModelError, match="too large for float16; write float32"):
        merge_adapter(tiny_file("llama"), lora, tmp_path / "m.gguf", dtype="f16")
    assert [path.name for path in tmp_path.glob("*m.gguf*")] == []


def test_a_file_that_exists_is_replaced_only_when_asked(tmp_path, capsys):
    adapter = write_adapter(tmp_path / "a.gguf", "llama", some_pairs())
    (tmp_path / "m.gguf").write_text("mine")
    lora = read_adapter(adapter, target("llama"))
    with pytest.raises(InvalidRequest, match="exists; choose another file"):
        merge_adapter(tiny_file("llama"), lora, tmp_path / "m.gguf")
    assert run("merge", FOLDER / "llama.gguf", adapter, tmp_path / "m.gguf") == 2
    assert (tmp_path / "m.gguf").read_text() == "mine"
    assert run("merge", FOLDER / "llama.gguf", adapter, tmp_path / "m.gguf", "--force") == 0
    assert GGUF(tmp_path / "m.gguf").tensors
    capsys.readouterr()


def test_an_adapter_of_another_model_is_refused(tmp_path, capsys):
    adapter = write_adapter(tmp_path / "a.gguf", "qwen3")
    assert run("merge", FOLDER / "llama.gguf", adapter, tmp_path / "m.gguf") == 2
    assert "architecture 'qwen3', and this one is 'llama'" in capsys.readouterr().err
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("text", ["a.gguf=much", "=0.5", "a.gguf=inf"])
def test_a_wrong_scale_is_refused(text, tmp_path, capsys):
    assert run("merge", FOLDER / "llama.gguf", text, tmp_path / "m.gguf") == 2
    assert "PATH=SCALE" in capsys.readouterr().err
