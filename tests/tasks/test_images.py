"""Real models of the catalogue, against the answers of their own packages on real images."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from real_tasks import open_real
from stretto.errors import InvalidRequest, ModelError, Unsupported
from stretto.tasks import Box
from stretto.tasks.images.centerface import MAX_PIXELS, input_size

DATA = Path(__file__).parents[1] / "data" / "tasks"
ANSWERS = json.loads((DATA / "answers.json").read_text())
COFFEE, ASTRONAUT, PAGE = DATA / "coffee.jpg", DATA / "astronaut.jpg", DATA / "page.png"

pytestmark = pytest.mark.golden


def same_objects(found, answers):
    """Each answer has one object of its label, at its place and as certain, and there are no others."""
    assert len(found) == len(answers)
    for answer in answers:
        box = Box(*np.clip(answer["box"], 0, [found.width, found.height] * 2).tolist())
        best = max(found, key=lambda item: item.box.iou(box) * (item.label == answer["label"]))
        assert best.label == answer["label"]
        assert best.box.iou(box) > 0.95
        assert best.score == pytest.approx(answer["score"], abs=0.02)
        assert np.array(best.points).reshape(-1) == pytest.approx(np.array(answer.get("points", [])), abs=2)


@pytest.mark.slow
def test_efficientnet_names_what_photographs_show():
    with open_real("efficientnet-lite0") as model:
        coffee, astronaut = model.classify([COFFEE, ASTRONAUT])
        for result, name in ((coffee, "coffee.jpg"), (astronaut, "astronaut.jpg")):
            answers = ANSWERS["efficientnet-lite0"][name]
            assert [label.name for label in result] == [model.labels[number] for number, _ in answers]
            assert [label.score for label in result] == pytest.approx(
                [score for _, score in answers], abs=0.02
            )
        assert (coffee.best.name, coffee.model, coffee.license) == ("espresso", model.name, "Apache-2.0")
        assert len(model.classify(COFFEE, top=1).labels) == 1
        assert len(set(model.labels)) == 1000
        with pytest.raises(InvalidRequest, match="top must be at least 1"):
            model.classify(COFFEE, top=0)
    with pytest.raises(Unsupported, match="is closed"):
        model.classify(COFFEE)


@pytest.mark.slow
def test_orientation_says_how_a_page_is_turned():
    turned = [Image.open(PAGE).rotate(-angle, expand=True) for angle in (0, 90, 180, 270)]
    with open_real("orientation") as model:
        results = model.classify(turned)
    assert [result.best.name for result in results] == ["0", "90", "180", "270"]
    for result, answers in zip(results, ANSWERS["orientation"].values(), strict=True):
        scores = {label.name: label.score for label in result}
        assert [scores[angle] for angle in ("0", "90", "180", "270")] == pytest.approx(answers, abs=0.01)


@pytest.mark.slow
def test_centernet_finds_objects():
    with open_real("centernet") as model:
        found = model.detect([COFFEE, ASTRONAUT])
        assert (found[0].license, model.detect(COFFEE, threshold=0.9).items) == ("MIT", ())
    same_objects(found[0], ANSWERS["centernet"]["coffee.jpg"])
    same_objects(found[1], ANSWERS["centernet"]["astronaut.jpg"])


@pytest.mark.slow
def test_centerface_finds_faces_and_their_landmarks():
    with open_real("centerface") as model:
        found = model.detect(ASTRONAUT)
        same_objects(found, ANSWERS["centerface"]["astronaut.jpg"])
        assert len(found[0].points) == 5
        half = model.detect(Image.open(ASTRONAUT).resize((256, 300)))
        assert half[0].box.iou(Box(90.8, 34.3, 134.8, 104)) > 0.7
        assert len(model.detect(np.zeros((1, 9, 3), np.uint8))) == 0


def test_the_input_of_centerface_has_a_limit():
    assert input_size(500, 333) == (512, 352)
    assert input_size(1, 1) == (32, 32)
    for width, height in ((9000, 7000), (64_000_000, 1), (1, 64_000_000)):
        made = input_size(width, height)
        assert made[0] * made[1] <= 1.2 * MAX_PIXELS
        assert made[0] % 32 == made[1] % 32 == 0


@pytest.mark.slow
def test_layout_finds_the_parts_of_a_page():
    with open_real("layout") as model:
        found = model.detect(PAGE)
        assert len(model.detect(PAGE, limit=3)) == 3
    same_objects(found, ANSWERS["layout"]["page.png"])
    assert {item.label for item in found} >= {"title", "text", "table", "figure"}


@pytest.mark.slow
def test_u2net_cuts_out_the_foreground():
    with open_real("u2net") as model:
        result = model.segment(COFFEE)
    answer = np.asarray(Image.open(DATA / "coffee-mask.png"), np.float32) / 255
    assert np.abs(result.alpha - answer).mean() < 0.01
    mask, other = result.mask, answer >= 0.5
    assert (mask & other).sum() / (mask | other).sum() > 0.99
    assert (result.alpha.min() >= 0, result.alpha.max() <= 1, result.license) == (True, True, "MIT")
    cut = np.asarray(result.cut_out(COFFEE))
    assert cut.shape == (400, 600, 4)
    assert cut[150, 300, 3] == 255  # the coffee
    assert cut[5, 5, 3] == 0  # the table


def test_a_checkpoint_of_another_model_is_refused():
    pytest.importorskip("onnx")
    from stretto.tasks.images.efficientnet import build

    with pytest.raises(ModelError, match=r"_conv_stem\.weight: lacks this tensor"):
        build({}, Path("other.pth"))
