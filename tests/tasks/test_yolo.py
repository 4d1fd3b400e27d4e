"""Exports of the YOLO family are recognised by their shapes; what they find is in pixels of the image."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from color_graphs import NAMES, constants, detector, square
from stretto.errors import ModelError
from stretto.tasks import Box
from stretto.tasks.model import load_task
from stretto.tasks.yolo import HEADS, count_cells, decode, read_names, read_size, recognize

# In a letterbox of 320 × 320 the image is twice as large, and 80 pixels are above it.
SQUARE = (32, 8, 48, 24)  # from (64, 96) to (96, 128) there: a cell of 32 × 32
LAST = '{"0": "blue", "1": "green", "2": "red"}'  # YOLOX sees blue first


@pytest.mark.parametrize("head", ["yolov5", "yolov8", "yolox"])
@pytest.mark.parametrize("color", ["red", "blue"])
def test_what_is_there_is_found_once(tmp_path, head, color):
    top = 40 if head == "yolox" else 0  # it puts images into the corner, not the middle
    box = (SQUARE[0], SQUARE[1] + top, SQUARE[2], SQUARE[3] + top)
    path = detector(tmp_path / "m.onnx", head, metadata={"names": LAST} if head == "yolox" else None)
    with load_task(path) as model:
        assert model.convention.head == head
        found = model.detect(square(160, 80, box, color), threshold=0.6)
    assert [item.label for item in found] == [color]
    assert found[0].score > 0.95
    assert found[0].box.iou(Box(*box)) > 0.999
    assert (found.width, found.height) == (160, 80)


def test_sizes_that_a_file_leaves_open_are_found_out(tmp_path):
    sizes = {"names": NAMES, "imgsz": "[192, 320]", "license": "MIT"}
    path = detector(tmp_path / "m.onnx", "yolov8", 320, 192, metadata=sizes, dynamic=True)
    with load_task(path) as model:
        assert (model.convention.width, model.convention.height) == (320, 192)
        images = [square(320, 192, (x, 64, x + 32, 96), "green") for x in range(0, 320, 32)]
        found = model.detect(images, threshold=0.6)  # several at once
        assert str(model.detect(images[3], threshold=0.6)) == str(found[3])
    assert [str(each) for each in found] == [
        f"green 1.00 at ({x}, 64, {x + 32}, 96)" for x in range(0, 320, 32)
    ]
    assert found[0].license == "MIT"


def test_classes_without_names_have_numbers(tmp_path):
    with load_task(detector(tmp_path / "m.onnx", "yolov8", metadata={})) as model:
        found = model.detect(square(320, 320, (32, 32, 64, 64), "green"), threshold=0.6)
    assert found[0].label == "class 1"
    assert found.license == "unknown"


ROWS = [[10, 20, 60, 80, 0.9, 1], [11, 21, 61, 81, 0.8, 1], [200, 200, 300, 300, 0.7, 7]]


def kept_outputs(kind):
    rows = np.array(ROWS)
    if kind == "kept":
        return {"output0": np.concatenate((rows, np.zeros((5, 6))))[None]}
    if kind == "kept7":
        return {"output": np.concatenate((np.zeros((3, 1)), rows[:, :4], rows[:, 5:], rows[:, 4:5]), axis=1)}
    counts = {"num_dets": [[2]], "det_boxes": rows[None, :, :4]}
    return {**counts, "det_scores": rows[None, :, 4], "det_classes": rows[None, :, 5]}


@pytest.mark.parametrize("kind", ["kept", "kept7", "kept4"])
def test_boxes_that_a_graph_has_chosen_are_not_chosen_again(tmp_path, kind):
    path = constants(tmp_path / "m.onnx", kept_outputs(kind), metadata={"names": "['cat', 'dog']"})
    with load_task(path) as model:
        assert model.convention.head == kind
        found = model.detect(np.zeros((320, 320, 3), np.uint8))
    # Both boxes of one class stay; a class without a name goes.
    assert [str(item) for item in found] == ["dog 0.90 at (10, 20, 60, 80)", "dog 0.80 at (11, 21, 61, 81)"]


def test_a_decoded_head_is_not_taken_for_yolox(tmp_path):
    centres = np.random.default_rng(1).uniform(0, 320, (2100, 4))
    path = detector(tmp_path / "m.onnx", "yolox", boxes=centres)
    with load_task(path) as model, pytest.raises(ModelError, match='head = "yolov5" in a recipe'):
        model.detect(np.zeros((320, 320, 3), np.uint8))


def test_heads_are_told_apart_by_the_number_of_boxes():
    assert recognize({"o": (1, 25200, 85)}, 640, 640) == "yolov5"
    assert recognize({"o": (1, 84, 8400)}, 640, 640) == "yolov8"
    assert recognize({"o": (1, 8400, 85)}, 640, 640) == "yolox"
    assert recognize({"o": (1, 300, 6)}, 640, 640) == "kept"
    assert recognize({"o": (1, 102000, 85)}, 1280, 1280) == "yolov5"
    assert recognize({"o": (1, 1000)}, 224, 224) is None
    assert recognize({"o": (1, 3, 80, 80, 85)}, 640, 640) is None
    assert count_cells(640, 640) == {8400: (8, 16, 32), 8500: (8, 16, 32, 64)}
    assert count_cells(650, 640) == {}


def test_exports_for_other_tasks_are_refused(tmp_path):
    path = detector(tmp_path / "m.onnx", "yolov8", metadata={"task": "pose"})
    with pytest.raises(ModelError, match="task 'pose'"):
        load_task(path)
    path = detector(tmp_path / "m.onnx", "yolov8", metadata={"names": "['cat', 'dog']"})
    with pytest.raises(ModelError, match="names 2 classes, but its output has room for 3"):
        load_task(path)


def test_names_are_read_and_never_run(tmp_path):
    assert read_names("{0: 'a', 1: \"b's\"}") == ("a", "b's")
    assert read_names("['a', 'b']") == ("a", "b")
    assert read_names('{"0": "a", "1": "b"}') == ("a", "b")
    bad = (tmp_path / "was-run").as_posix()
    for text in (
        *("", "{0: 'a', 2: 'b'}", "{0: 1}", "{'a': 'b'}", "[]", "(1, 2)", "{0: 'x' * 9}", "[" * 200_000),
        *(f"__import__('os').mkdir('{bad}')", f"[__import__('os').mkdir('{bad}')]", "['" + "x" * 999 + "']"),
        *("{0: 'a'" + ", 0: 'a'" * 300_000 + "}", "{1e999: 'a'}", "{float('nan'): 'a'}"),
    ):
        assert read_names(text) is None
    assert not (tmp_path / "was-run").exists()
    assert read_size("[480, 640]") == (480, 640)
    assert read_size("[480, true]") == read_size("nonsense") == (640, 640)


def test_numbers_that_are_none_find_nothing(tmp_path):
    rows = np.full((1, 7, 2100), np.nan)
    rows[0, :, 5] = np.inf
    with load_task(constants(tmp_path / "m.onnx", {"o": rows})) as model:
        assert model.convention.head == "yolov8"
        assert len(model.detect(np.zeros((50, 60, 3), np.uint8), threshold=0)) == 0


SIZES = st.lists(st.sampled_from([0, 1, 2, 4, 6, 7, 8, 21, 63]), min_size=0, max_size=4)


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(sorted(HEADS)),
    st.lists(SIZES, min_size=1, max_size=4),
    st.sampled_from([0.5, 1e30, np.nan]),
)
@example("yolox", [[1, 21, 0]], 0.5)  # as many rows as there are cells, and nothing in them
@example("yolox", [[1, 21, 6, 0]], 0.5)
def test_outputs_of_any_shape_are_boxes_or_an_error(kind, shapes, value):
    arrays = {str(number): np.full(shape, value, np.float32) for number, shape in enumerate(shapes)}
    with np.errstate(all="ignore"):
        try:
            boxes, scores, classes = decode(kind, arrays, 32, 32, 3)
        except ModelError:
            return
    assert boxes.shape == (len(scores), 4)
    assert ((classes >= 0) & (classes < 3)).all()
