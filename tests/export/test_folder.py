"""Folders of exported models: their files, what they say, and that they appear whole or not at all."""

import json

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import stretto.export.folder as folder_module
from onnx_exports import TEMPLATE, session_of, text_rows, with_vocabulary
from stretto.cli import main
from stretto.errors import InvalidRequest, ModelError, Unsupported
from stretto.export import export_onnx
from tiny_models import FOLDER, answer

FILES = {
    *("chat_template.jinja", "config.json", "genai_config.json", "generation_config.json"),
    *("model.onnx", "tokenizer.json", "tokenizer_config.json"),
}


@pytest.fixture
def llama(tmp_path):
    return with_vocabulary("llama", tmp_path / "llama.gguf")


def test_a_folder_has_everything_that_runtimes_read(llama, tmp_path):
    made = export_onnx(llama, tmp_path / "out", precision="f32")
    assert set(made.files) == {path.name for path in made.path.iterdir()} == FILES
    assert made.nbytes == sum(path.stat().st_size for path in made.path.iterdir())
    config = json.loads((made.path / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["head_dim"]) == ("llama", 3, 16)
    assert (config["bos_token_id"], config["eos_token_id"]) == (94, 95)
    assert config["max_position_embeddings"] == made.context
    assert config["rope_theta"] == 5000
    genai = json.loads((made.path / "genai_config.json").read_text())
    assert genai["model"]["context_length"] == made.context
    assert genai["search"]["past_present_share_buffer"]
    assert (made.path / "chat_template.jinja").read_text() == TEMPLATE
    rows = text_rows(session_of(str(made.path / "model.onnx")), answer("llama", "tokens.0"))
    assert np.abs(rows - answer("llama", "logits.0")).max() <= 2e-5


def test_weights_can_be_in_a_file_of_their_own(llama, tmp_path):
    one = export_onnx(llama, tmp_path / "one", precision="int8", form="cells")
    two = export_onnx(llama, tmp_path / "two", precision="int8", form="cells", external_data=True)
    assert set(two.files) - set(one.files) == {"model.onnx_data"}
    assert "genai_config.json" not in two.files  # which has no cells
    tokens = answer("llama", "tokens.0")
    rows = [text_rows(session_of(str(made.path / "model.onnx")), tokens) for made in (one, two)]
    np.testing.assert_array_equal(*rows)


def test_a_rope_that_is_scaled_is_not_described_as_a_plain_one(tmp_path):
    path = with_vocabulary("llama-yarn", tmp_path / "yarn.gguf")
    made = export_onnx(path, tmp_path / "out", precision="f32")
    assert "rope_theta" not in json.loads((made.path / "config.json").read_text())


def test_past_and_present_are_two_buffers_where_heads_are_too_small(tmp_path):
    path = with_vocabulary("llama-linear", tmp_path / "linear.gguf")
    made = export_onnx(path, tmp_path / "out", precision="f32")
    genai = json.loads((made.path / "genai_config.json").read_text())
    assert not genai["search"]["past_present_share_buffer"]


def test_a_folder_that_exists_is_replaced_only_on_request(llama, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("kept")
    with pytest.raises(InvalidRequest, match="exists"):
        export_onnx(llama, target)
    assert (target / "old").read_text() == "kept"
    export_onnx(llama, target, replace=True)
    assert {path.name for path in target.iterdir()} == FILES
    assert not list(tmp_path.glob(".out*"))


def test_nothing_is_left_of_an_export_that_fails(llama, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(folder_module, "_write_model", fail)
    with pytest.raises(OSError, match="disk full"):
        export_onnx(llama, tmp_path / "made" / "out")
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "param"),
    [({"precision": "int3"}, "precision"), ({"form": "dense"}, "form"), ({"context": 0}, "context")],
)
def test_wrong_options_are_named(llama, tmp_path, options, param):
    with pytest.raises(InvalidRequest) as raised:
        export_onnx(llama, tmp_path / "out", **options)
    assert raised.value.param == param


def test_models_that_cannot_be_exported_leave_nothing(tmp_path):
    with pytest.raises(Unsupported, match="experts"):
        export_onnx(FOLDER / "mixtral.gguf", tmp_path / "out")
    with pytest.raises(ModelError, match="tokenizer"):
        export_onnx(FOLDER / "llama.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(llama, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", "onnx", str(llama), str(tmp_path / "out"), "--precision", "int4", "--form", "plain"])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.err) == (0, "")
    assert "plain, int4, context" in captured.out
    assert (tmp_path / "out" / "model.onnx").exists()
    with pytest.raises(SystemExit) as ended:
        main(["export", "onnx", str(llama), str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert "exists" in captured.err
    assert captured.err.count("\n") == 1
