"""A recipe beside a model says what it is; what it says is checked."""

import os

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from color_graphs import Graph, classifier, constants, detector, mask, square
from stretto.errors import ModelError
from stretto.tasks.model import load_task
from stretto.tasks.recipe import read_recipe

CLASSIFY = """
task = "classify"
license = "CC0-1.0"
labels = ["red", "green", "blue"]
[input]
width = 8
height = 8
"""


@pytest.fixture
def recipe(tmp_path):
    """Writes a recipe beside the model."""

    def written(text):
        (tmp_path / "m.toml").write_text(text)
        return tmp_path / "m.toml"

    return written


def test_a_classifier_by_recipe(tmp_path, recipe):
    path = classifier(tmp_path / "m.onnx")
    recipe(CLASSIFY)
    images = [square(20, 30, (0, 0, 20, 30), color) for color in ("blue", "red", "green")] * 4
    with load_task(path) as model:
        results = model.classify(images)
        assert [result.best.name for result in results] == ["blue", "red", "green"] * 4
        assert [label.score for label in results[0]] == [1, 0, 0]
        assert results[0].license == "CC0-1.0"
    recipe(
        CLASSIFY
        + 'order = "bgr"\nmean = [0.5, 0.5, 0.5]\n[output]\nscores = "means"\nactivation = "sigmoid"\n'
    )
    with load_task(path) as model:
        result = model.classify(images[0])
    assert (result.best.name, result.best.score) == ("red", pytest.approx(1 / (1 + np.exp(-0.5))))


def test_labels_may_stand_in_a_file(tmp_path, recipe):
    path = classifier(tmp_path / "m.onnx", batch=1)
    (tmp_path / "names.txt").write_text("rot\ngrün\nblau\n", encoding="utf-8")
    recipe(CLASSIFY.replace('["red", "green", "blue"]', '"names.txt"'))
    with load_task(path) as model:
        results = model.classify([square(9, 9, (0, 0, 9, 9), "green")] * 2, top=1)
    assert [result.best.name for result in results] == ["grün", "grün"]


def test_a_segmenter_by_recipe(tmp_path, recipe):
    path = mask(tmp_path / "m.onnx")
    recipe('task = "segment"\n[input]\nwidth = 16\nheight = 16\n[output]\nmask = "mask"\nstretch = true')
    image = square(64, 32, (16, 8, 48, 24), "red")
    with load_task(path) as model:
        result = model.segment(image)
    assert result.alpha.shape == (32, 64)
    assert (result.mask == (image[:, :, 0] > 0)).mean() > 0.97


BOXES = {
    "boxes": [[[0.25, 0.5, 0.1, 0.2], [0.25, 0.5, 0.1, 0.21], [0.9, 0.9, 0.4, 0.4], [0.5, 0.5, 0.2, 0.2]]],
    "logits": [[[3, -9], [2, -9], [-9, 4], [-9, -9]]],
}
DETECT = """
task = "detect"
labels = ["cat", "dog"]
[input]
width = 320
height = 320
fit = "stretch"
[output]
"""


def test_a_detector_by_recipe(tmp_path, recipe):
    path = constants(tmp_path / "m.onnx", BOXES)
    outputs = (
        'boxes = "boxes"\nscores = "logits"\nformat = "centre"\nunits = "shares"\nactivation = "sigmoid"\n'
    )
    recipe(DETECT + outputs + "threshold = 0.5\n")
    with load_task(path) as model:
        found = model.detect(np.zeros((100, 200, 3), np.uint8))
    assert [str(item) for item in found] == [
        "dog 0.98 at (140, 70, 200, 100)",
        "cat 0.95 at (40, 40, 60, 60)",
    ]


def test_classes_may_have_an_output_of_their_own(tmp_path, recipe):
    outputs = {"b": [[1, 2, 10, 20], [30, 40, 5, 5], [1, 1, 1, 1]], "s": [0.9, 0.8, 0.7], "c": [1, 0, 9]}
    path = constants(tmp_path / "m.onnx", outputs)
    recipe(DETECT + 'boxes = "b"\nscores = "s"\nclasses = "c"\nformat = "corner"')
    with load_task(path) as model:
        found = model.detect(np.zeros((320, 320, 3), np.uint8))
    assert [str(item) for item in found] == ["dog 0.90 at (1, 2, 11, 22)", "cat 0.80 at (30, 40, 35, 45)"]


def test_a_recipe_may_name_a_known_head(tmp_path, recipe):
    path = detector(tmp_path / "m.onnx", "yolov8")
    recipe(DETECT.replace('["cat", "dog"]', '["r", "g", "b"]') + 'head = "yolov8"\nthreshold = 0.6')
    with load_task(path) as model:
        found = model.detect(square(320, 320, (64, 96, 96, 128), "blue"))
    assert [str(item) for item in found] == ["b 1.00 at (64, 96, 96, 128)"]
    recipe(DETECT.replace('["cat", "dog"]', '["r", "g", "b"]') + 'head = "kept7"')
    with load_task(path) as model, pytest.raises(ModelError, match=r"are not those of kept7"):
        model.detect(square(320, 320, (64, 96, 96, 128), "blue"))


def test_outputs_that_do_not_belong_together_are_an_error(tmp_path, recipe):
    path = constants(tmp_path / "m.onnx", {"b": np.zeros((7, 4)), "s": np.zeros(5)})
    recipe(DETECT + 'boxes = "b"\nscores = "s"')
    with load_task(path) as model, pytest.raises(ModelError, match="are no boxes and scores"):
        model.detect(np.zeros((9, 9, 3), np.uint8))
    path = classifier(tmp_path / "m.onnx")
    recipe(CLASSIFY.replace('"green", ', ""))
    with load_task(path) as model, pytest.raises(ModelError, match="there are 2 labels"):
        model.classify(np.zeros((9, 9, 3), np.uint8))


def test_without_a_recipe_the_error_shows_one(tmp_path):
    path = classifier(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"(?s)write a recipe m\.toml beside it.*task = .*\[input\]"):
        load_task(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "task: is missing"),
        ("task = 'x", "is no TOML"),
        ("a = " + "[" * 5000, "is no TOML"),
        ('task = "sing"\n[input]\nwidth = 8\nheight = 8', "task: must be one of classify, detect, segment"),
        (CLASSIFY + "speed = 3", "input.speed: is not known; there are name"),
        (CLASSIFY.replace("license", "licence"), "licence: is not known"),
        (CLASSIFY + "[output]\nboxes = 'b'", "output.boxes: is not known; there are scores"),
        (CLASSIFY.replace("width = 8", "width = 0"), "input.width: must be a whole number from 1 to 4096"),
        (CLASSIFY.replace("width = 8", "width = 1e3"), "input.width: must be a whole number"),
        (CLASSIFY.replace("width = 8", "width = true"), "input.width: must be a whole number"),
        (CLASSIFY.replace("width = 8\n", ""), "input.width: is missing"),
        (CLASSIFY + "std = [1, 0, 1]", "input.std: must be three numbers above 0"),
        (CLASSIFY + "mean = [1, nan, 1]", "input.mean: must be three numbers"),
        (CLASSIFY + "scale = inf", "input.scale: must be a number"),
        (CLASSIFY + "edge = 9", "input.edge: is for fit"),
        (CLASSIFY.replace('["red", "green", "blue"]', "[]"), "labels: must be from 1"),
        (CLASSIFY.replace('["red", "green", "blue"]', "[1, 2]"), "labels: 1 is no text"),
        (CLASSIFY.replace('["red", "green", "blue"]', "7"), "labels: must be a list of texts"),
        (CLASSIFY.replace('labels = ["red", "green", "blue"]', ""), "labels: is missing"),
        (DETECT, "output: needs head"),
        (DETECT + "head = 'yolov8'\nboxes = 'b'", "output.head: a known head needs no names"),
        (DETECT + "head = 'yolov4'", "output.head: must be one of yolov5"),
        (DETECT.replace('labels = ["cat", "dog"]', "") + "head = 'kept'", "labels: is missing"),
        ("input = 3\ntask = 'classify'", "input: must be a table"),
        ("#" + "x" * 2_000_000, "has more than 1,048,576 bytes"),
    ],
)
def test_wrong_recipes_name_the_field(recipe, text, message):
    with pytest.raises(ModelError) as error:
        read_recipe(recipe(text))
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["../names.txt", "/etc/passwd", "..", "sub/names.txt", "", "no-such.txt"])
def test_paths_may_not_leave_the_folder(tmp_path, recipe, name):
    (tmp_path.parent / "names.txt").write_text("a\nb\nc\n")
    with pytest.raises(ModelError):
        read_recipe(recipe(CLASSIFY.replace('["red", "green", "blue"]', f'"{name}"')))


def test_links_may_not_leave_the_folder(tmp_path, recipe):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    (folder / "names.txt").symlink_to(tmp_path / "names.txt")
    (folder / "m.toml").write_text(CLASSIFY.replace('["red", "green", "blue"]', '"names.txt"'))
    with pytest.raises(ModelError, match="is no file of its folder"):
        read_recipe(folder / "m.toml")
    (folder / "n.toml").symlink_to(recipe(CLASSIFY))
    with pytest.raises(ModelError, match="is no file of its folder"):
        read_recipe(folder / "n.toml")
    os.mkfifo(folder / "p.toml")
    with pytest.raises(ModelError, match="is no file of its folder"):
        read_recipe(folder / "p.toml")


def test_a_recipe_for_another_graph_is_refused(tmp_path, recipe):
    path = classifier(tmp_path / "m.onnx")
    recipe(CLASSIFY.replace("width = 8", "width = 9"))
    with pytest.raises(
        ModelError, match=r"input 'images' is float32 \['n', 3, 8, 8\], and the recipe's \[1, 3, 8, 9\]"
    ):
        load_task(path)
    recipe(CLASSIFY + 'layout = "nhwc"')
    with pytest.raises(ModelError, match="and the recipe's"):
        load_task(path)
    recipe(CLASSIFY + 'name = "pixels"')
    with pytest.raises(ModelError, match="has the inputs images"):
        load_task(path)
    recipe(CLASSIFY + '[output]\nscores = "probabilities"')
    with pytest.raises(ModelError, match="no output 'probabilities', but means"):
        load_task(path)


def test_models_of_several_inputs_are_refused(tmp_path, recipe):
    graph = Graph()
    graph.add("Add", "a", "b", output="c")
    path = graph.save(tmp_path / "m.onnx", {"a": [1, 3, 8, 8], "b": [1, 3, 8, 8]}, {"c": [1, 3, 8, 8]})
    with pytest.raises(ModelError, match="follows no convention"):
        load_task(path)
    recipe(CLASSIFY)
    with pytest.raises(ModelError, match="a recipe is for models with one, an image"):
        load_task(path)


def test_hostile_graphs_are_refused_before_they_run(tmp_path, recipe):
    recipe(CLASSIFY)
    graph = Graph()
    graph.add("Evil", "images", output="means", domain="org.example")
    path = graph.save(tmp_path / "m.onnx", {"images": [1, 3, 8, 8]}, {"means": [1, 3]})
    with pytest.raises(ModelError, match="custom operator"):
        load_task(path)
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError):
        load_task(path)


def test_a_graph_that_asks_for_too_much_memory_is_an_error(tmp_path, recipe):
    recipe(CLASSIFY)
    graph = Graph()
    scales = graph.constant([1, 1, 90_000, 90_000])
    made = graph.add("Resize", "images", "", scales, mode="nearest")
    graph.add("Flatten", graph.add("GlobalAveragePool", made), output="means")
    path = graph.save(tmp_path / "m.onnx", {"images": [1, 3, 8, 8]}, {"means": [1, 3]})
    with load_task(path) as model, pytest.raises(ModelError, match="cannot compute it"):
        model.classify(np.zeros((9, 9, 3), np.uint8))


def test_outputs_without_numbers_are_an_error(tmp_path, recipe):
    recipe(CLASSIFY)
    graph = Graph()
    mean = graph.add("Flatten", graph.add("GlobalAveragePool", "images"))
    graph.add("Cast", mean, output="means", to=8)  # text
    path = graph.save(tmp_path / "m.onnx", {"images": [1, 3, 8, 8]}, {"means": [1, 3]}, made=8)
    with load_task(path) as opened, pytest.raises(ModelError, match="'means' holds no numbers"):
        opened.classify(np.zeros((9, 9, 3), np.uint8))


def test_weights_outside_the_folder_are_refused(tmp_path, recipe):
    from onnx import TensorProto, helper, load, save

    recipe(CLASSIFY)
    (tmp_path.parent / "secret.bin").write_bytes(bytes(12))
    path = classifier(tmp_path / "m.onnx")
    model = load(path)
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value="../secret.bin")
    model.graph.initializer.append(weights)
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Add", ["before", "w"], ["means"]))
    save(model, path)
    with pytest.raises(ModelError, match=r"secret\.bin"):
        load_task(path)
