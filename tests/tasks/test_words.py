"""Classes of texts by their words, and HateSonar's own answers."""

import json
from pathlib import Path

import numpy as np
import pytest

from real_tasks import open_real
from stretto.errors import InvalidRequest, ModelError
from stretto.tasks.model import Source
from stretto.tasks.words import MODEL, Linear, Words, open_task

DATA = Path(__file__).parent.parent / "data" / "tasks"
LINEAR = Linear(
    columns={"good": 0, "bad": 1},
    idf=np.asarray([1, 2], np.float32),
    coefficients=np.asarray([(2, 0), (0, 2), (0, 0)], np.float32),
    intercepts=np.zeros(3, np.float32),
)


def softmax(*scores):
    powers = np.exp(scores)
    return pytest.approx((powers / powers.sum()).tolist(), abs=1e-6)


def test_words_are_counted_weighted_and_normalised():
    assert LINEAR.chances("Good, GOOD and bad").tolist() == softmax(2**0.5, 2**0.5, 0)
    assert LINEAR.chances("nothing known").tolist() == softmax(0, 0, 0)
    assert LINEAR.chances("").tolist() == softmax(0, 0, 0)


def test_labels_come_most_probable_first():
    model = Words(Source("fake", "MIT", {}), LINEAR)
    one, other = model.classify(["bad", "good"], top=1)
    assert (one.best.name, other.best.name) == ("offensive_language", "hate_speech")
    assert len(model.classify("bad").labels) == 3
    for wrong, message in ((7, "a text of at most"), ("a" * 1_000_001, "a text of at most")):
        with pytest.raises(InvalidRequest, match=message):
            model.classify(wrong)
    with pytest.raises(InvalidRequest, match="top must be"):
        model.classify("bad", top=0)


def test_another_graph_is_refused(tmp_path):
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info("x", 1, [1])
    out = onnx.helper.make_tensor_value_info("y", 1, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [value], [out])
    onnx.save(onnx.helper.make_model(graph), str(tmp_path / MODEL))
    with pytest.raises(ModelError, match="no tf-idf with a linear classifier"):
        open_task(Source("fake", "MIT", {MODEL: tmp_path / MODEL}), "cpu", None)


@pytest.mark.slow
def test_classes_are_those_of_the_package():
    golden = json.loads((DATA / "texts.json").read_text())["words"]
    with open_real("hatesonar") as model:
        results = model.classify(list(golden))
    for expected, result in zip(golden.values(), results, strict=True):
        assert {label.name: label.score for label in result} == pytest.approx(expected, abs=2e-5)
    assert results[2].best.name == "offensive_language"
