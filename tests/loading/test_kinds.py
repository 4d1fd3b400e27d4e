"""`stretto.load` opens models of all kinds."""

import pytest

import stretto
from stretto.errors import InvalidRequest, ModelError, Unsupported
from stretto.tasks import TaskModel, model
from stretto.testing import mock_llm
from stretto.weights.hub.catalogue import PACKAGED


def test_a_language_model_lacks_other_verbs():
    with mock_llm(["a"]) as llm, pytest.raises(Unsupported, match="cannot detect; it can generate"):
        llm.detect("x.png")


def test_options_of_language_models_are_refused_for_others(tmp_path):
    with pytest.raises(InvalidRequest, match="cells is for language models"):
        stretto.load(tmp_path / "x.onnx", cells=4096)
    with pytest.raises(InvalidRequest, match="backend is for language models"):
        stretto.load(tmp_path / "x.onnx", backend="native")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"x\.onnx"):
        stretto.load(tmp_path / "x.onnx")


def test_each_model_of_the_catalogue_has_a_home():
    assert set(model.HOMES) == {name for name, one in PACKAGED.items() if one.kind == "task"}


def test_the_documentation_is_that_of_language_models_too():
    assert "TaskModel" in stretto.load.__doc__
    assert "precision: " in stretto.load.__doc__


def test_tasks_are_exported():
    assert stretto.tasks.TaskModel is TaskModel
