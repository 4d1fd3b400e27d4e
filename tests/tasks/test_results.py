"""Results print, go to JSON and draw themselves."""

import json

import numpy as np
import pytest

from stretto.errors import InvalidRequest, Unsupported
from stretto.tasks import (
    Box,
    Classification,
    Detection,
    Detections,
    Label,
    Line,
    Ranked,
    Ranking,
    Reading,
    Segment,
    Segmentation,
    TaskModel,
    Transcript,
)
from stretto.tasks.model import Source, each

GREY = np.full((80, 120, 3), 128, np.uint8)


def test_boxes_overlap():
    assert Box(0, 0, 10, 10).iou(Box(0, 0, 10, 10)) == 1
    assert Box(0, 0, 10, 10).iou(Box(5, 0, 15, 10)) == pytest.approx(1 / 3)
    assert Box(0, 0, 10, 10).iou(Box(20, 20, 30, 30)) == 0
    assert Box(5, 5, 5, 5).iou(Box(5, 5, 5, 5)) == 0


def test_json_names_model_and_license():
    found = Detections(
        (Detection("cat", np.float32(0.5), Box(1, 2, 3, 4)),), 80, 60, model="m", license="MIT"
    )
    data = json.loads(found.to_json())
    assert (data["model"], data["license"], data["width"]) == ("m", "MIT", 80)
    assert data["items"][0] == {
        "label": "cat",
        "score": 0.5,
        "box": {"x0": 1, "y0": 2, "x1": 3, "y1": 4},
        "points": [],
    }
    assert str(found) == "cat 0.50 at (1, 2, 3, 4)"


def test_labels_and_rankings_print():
    assert str(Classification((Label("a", 0.75), Label("b", 0.25)))) == "a 0.75\nb 0.25"
    assert Classification((Label("a", 0.75),)).best.name == "a"
    assert str(Ranking((Ranked(1, 0.5, "text"),))) == "  0.5000  text"


def test_boxes_are_drawn_where_they_are():
    found = Detections((Detection("cat", 0.9, Box(30, 40, 100, 70), ((50, 50),)),), 120, 80)
    drawn = np.asarray(found.draw(GREY))
    assert drawn.shape == GREY.shape
    assert (drawn[70, 60] != 128).any()  # the lower edge
    assert (drawn[50, 50] != 128).any()  # a landmark
    assert (drawn[60, 60] == 128).all()  # inside
    assert (GREY == 128).all()


def test_masks_are_cut_out():
    alpha = np.zeros((80, 120), np.float32)
    alpha[:40] = 1
    result = Segmentation(alpha)
    assert result.mask.sum() == 40 * 120
    assert np.asarray(result.cut_out(GREY))[:, :, 3].tolist() == (alpha * 255).astype(int).tolist()
    drawn = np.asarray(result.draw(GREY))
    assert (drawn[0, 0] != 128).any()
    assert (drawn[79, 0] == 128).all()
    assert result.to_dict()["alpha"].startswith("data:image/png;base64,")
    with pytest.raises(InvalidRequest, match="give the image that was segmented"):
        result.draw(GREY[:10])


def test_lines_and_segments_have_texts():
    corners = ((10.0, 10.0), (60.0, 12.0), (60.0, 30.0), (10.0, 28.0))
    reading = Reading((Line("one", 0.9, corners), Line("two", 0.8, corners)), 120, 80)
    assert reading.text == "one\ntwo"
    assert reading.lines[0].box == Box(10, 10, 60, 30)
    assert (np.asarray(reading.draw(GREY)) != 128).any()
    transcript = Transcript((Segment(0, 1.5, "Hello"), Segment(2, 3, "there.")), 3.0)
    assert transcript.text == "Hello there."
    assert transcript.to_dict()["text"] == "Hello there."
    assert "1.50" in str(transcript)
    with pytest.raises(Unsupported, match="nothing that could be drawn"):
        transcript.draw(GREY)


def test_a_missing_verb_names_those_that_there_are():
    class Reader(TaskModel):
        verbs = ("read",)

    model = Reader(Source("reader", "MIT", {}))
    assert repr(model) == "<reader: read (MIT)>"
    with pytest.raises(Unsupported, match="reader cannot detect; it can read"):
        model.detect("x.png")
    with model as same:
        assert same is model


def test_a_list_of_inputs_gives_a_list_of_results():
    assert each("a", str.upper) == "A"
    assert each(["a", "b"], str.upper) == ["A", "B"]
    assert each([], str.upper) == []
