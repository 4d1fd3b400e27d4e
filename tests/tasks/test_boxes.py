"""Non-maximum suppression is its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import InvalidRequest
from stretto.tasks import Box
from stretto.tasks.images.base import check_share, detections, suppress, to_corners
from stretto.tasks.model import Source

coordinate = st.integers(0, 12)
candidates = st.lists(
    st.tuples(coordinate, coordinate, coordinate, coordinate, st.integers(0, 5), st.integers(0, 2)),
    max_size=24,
)


def by_definition(boxes, scores, classes, overlap):
    kept = []
    for number in sorted(range(len(boxes)), key=lambda number: (-scores[number], number)):
        box = Box(*boxes[number])
        rivals = (other for other in kept if classes is None or classes[other] == classes[number])
        if all(box.iou(Box(*boxes[other])) <= overlap for other in rivals):
            kept.append(number)
    return kept


@settings(deadline=None, max_examples=200)
@given(candidates, st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.booleans())
def test_suppression_is_its_definition(items, overlap, by_class):
    rows = np.array(items, float).reshape(-1, 6)
    boxes = np.concatenate((np.minimum(rows[:, :2], rows[:, 2:4]), np.maximum(rows[:, :2], rows[:, 2:4])), 1)
    scores, classes = rows[:, 4] / 5, rows[:, 5].astype(int)
    kinds = classes if by_class else None
    assert suppress(boxes, scores, kinds, overlap).tolist() == by_definition(boxes, scores, kinds, overlap)


def test_numbers_that_are_none_are_left_out():
    boxes = np.array([[0, 0, 9, 9], [np.nan, 0, 1, 1], [0, 0, np.inf, 1], [20, 20, 30, 30]])
    scores = np.array([0.5, 0.9, 0.9, np.nan])
    assert suppress(boxes, scores, None, 0.5).tolist() == [0]


def test_many_boxes_take_no_time():
    generator = np.random.default_rng(2)
    boxes = to_corners(generator.uniform(0, 640, (100_000, 4)))
    kept = suppress(boxes, generator.uniform(0, 1, 100_000), generator.integers(0, 80, 100_000), 0.5)
    assert 0 < len(kept) <= 3000


def test_empty_boxes_are_no_detections():
    found = detections(
        Source("m", "MIT", {}),
        (40, 30),
        ("cat", "dog"),
        np.array([[1.0, 2, 3, 4], [5, 5, 5, 9]]),
        np.array([0.5, 0.4]),
        np.array([1, 0]),
    )
    assert [str(item) for item in found] == ["dog 0.50 at (1, 2, 3, 4)"]
    assert (found.width, found.height, found.model) == (40, 30, "m")


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.5", True, float("nan")])
def test_shares_are_checked(value):
    with pytest.raises(InvalidRequest, match="threshold must be from 0 to 1"):
        check_share("threshold", value)
