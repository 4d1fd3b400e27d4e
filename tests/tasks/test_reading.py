"""Reading: rectangles, regions, crops, order and CTC; and PP-OCR on real pages, beside rapidocr."""

import json
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from real_tasks import open_real
from stretto.errors import ModelError
from stretto.tasks import Box
from stretto.tasks.reading.geometry import (
    area_and_perimeter,
    convex_hull,
    cut_line,
    grow,
    least_rectangle,
    order_corners,
    resize,
)
from stretto.tasks.reading.lines import find_lines, label_runs, level_lines, page_order, reading_order
from stretto.tasks.reading.ppocr import _prepared, batches, decode, prepare_crop, read_characters

DATA = Path(__file__).parent.parent / "data" / "tasks"


def turned(points, degrees, middle=(100.0, 100.0)):
    angle = np.radians(degrees)
    matrix = np.asarray([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))])
    return (np.asarray(points, np.float64) - middle) @ matrix + middle


def test_the_hull_of_a_grid_is_its_corners():
    grid = np.stack(np.meshgrid(np.arange(5.0), np.arange(3.0)), axis=-1).reshape(-1, 2)
    assert {tuple(point) for point in convex_hull(grid)} == {(0, 0), (4, 0), (4, 2), (0, 2)}


@pytest.mark.parametrize("degrees", [0, 3, -17, 40])
def test_the_least_rectangle_is_found_at_any_angle(degrees):
    corners = turned([(40, 90), (160, 90), (160, 110), (40, 110)], degrees)
    inside = turned(np.random.default_rng(0).uniform((40, 90), (160, 110), (50, 2)), degrees)
    found, side = least_rectangle(np.concatenate((corners, inside)))
    assert side == pytest.approx(20, abs=1e-3)
    np.testing.assert_allclose(found, order_corners(corners), atol=1e-3)


def test_a_point_and_a_line_have_rectangles_without_area():
    assert least_rectangle(np.asarray([(3.0, 4.0)]))[1] == 0
    corners, side = least_rectangle(np.asarray([(0.0, 0.0), (6.0, 8.0)]))
    assert (side, area_and_perimeter(corners)[1]) == pytest.approx((0, 20), abs=1e-4)


def test_a_rectangle_grows_by_the_margin_on_all_sides():
    grown = grow(np.asarray([(10.0, 20.0), (90.0, 20.0), (90.0, 40.0), (10.0, 40.0)]), 8.0)
    assert (grown.min(0).tolist(), grown.max(0).tolist()) == ([2, 12], [98, 48])


def flooded(mask):
    """Regions by flood fill: sets of pixels."""
    left, found = {tuple(pixel) for pixel in np.argwhere(mask)}, set()
    while left:
        region, queue = set(), deque([left.pop()])
        while queue:
            y, x = queue.popleft()
            region.add((y, x))
            near = {(y + j, x + i) for j in (-1, 0, 1) for i in (-1, 0, 1)} & left
            left -= near
            queue += near
        found.add(frozenset(region))
    return found


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45, 0.6])
def test_regions_are_those_of_a_flood_fill(share):
    mask = np.random.default_rng(7).random((40, 60)) < share
    runs = label_runs(mask)
    regions = {}
    for row, first, last, region in zip(runs.row, runs.first, runs.last, runs.region, strict=True):
        regions.setdefault(region, set()).update((row, x) for x in range(first, last + 1))
    assert {frozenset(region) for region in regions.values()} == flooded(mask)


def test_an_empty_map_has_no_lines():
    assert find_lines(np.zeros((64, 64), np.float32)) == []


def test_lines_are_found_and_faint_ones_are_not():
    chances = np.zeros((100, 200), np.float32)
    chances[20:30, 20:120] = 0.9
    chances[60:70, 20:120] = 0.4  # above the threshold of a pixel, below that of a line
    (line,) = find_lines(chances)
    assert line.min(0).tolist() == pytest.approx([13, 13], abs=1.5)
    assert line.max(0).tolist() == pytest.approx([127, 37], abs=1.5)


def test_an_upright_line_is_cut_out_as_it_is():
    pixels = np.random.default_rng(1).integers(0, 256, (50, 80, 3), np.uint8)
    quad = np.asarray([(10, 5), (60, 5), (60, 25), (10, 25)], np.float64)
    np.testing.assert_array_equal(cut_line(pixels, quad), pixels[5:25, 10:60])


def test_a_slanted_line_is_straightened():
    y, x = np.mgrid[:200, :200].astype(np.float64)
    smooth = np.stack([100 + 60 * np.sin(0.05 * (x + y))] * 3, axis=2)
    quad = np.rint(turned([(40, 90), (160, 90), (160, 110), (40, 110)], 20))
    crop = cut_line(np.rint(smooth).astype(np.uint8), quad).astype(np.float64)
    share = np.arange(crop.shape[1]) / crop.shape[1]
    along = quad[0] + share[:, None] * (quad[1] - quad[0])
    np.testing.assert_allclose(crop[0, :, 0], 100 + 60 * np.sin(0.05 * along.sum(axis=1)), atol=1.5)


def test_a_tall_crop_is_turned():
    pixels = np.zeros((100, 40, 3), np.uint8)
    quad = np.asarray([(5, 5), (25, 5), (25, 95), (5, 95)], np.float64)
    assert cut_line(pixels, quad).shape == (20, 90, 3)


def test_resizing_samples_between_pixels():
    row = np.repeat(np.asarray([[[0], [100], [200], [40]]], np.uint8), 3, axis=2)
    assert resize(row, 8, 1)[0, :, 0].tolist() == [0, 25, 75, 125, 175, 160, 80, 40]
    assert resize(row, 2, 1)[0, :, 0].tolist() == [50, 120]


def test_lines_are_padded_to_the_batch():
    crop = np.full((24, 48, 3), 255, np.uint8)
    made = prepare_crop(crop, 48, 320)
    assert made.shape == (3, 48, 320)
    assert (made[:, :, :96] == 1).all()
    assert not made[:, :, 96:].any()


def test_batches_take_lines_of_similar_width():
    crops = [np.zeros((10, width, 3), np.uint8) for width in (90, 10, 50, 70, 30, 20, 60)]
    assert batches(crops) == [[1, 5, 4, 2, 6, 3], [0]]


def test_ctc_merges_equal_neighbours_and_drops_blanks():
    characters = read_characters("a\nb")
    scores = np.full((7, 4), 0.0, np.float32)
    for step, number in enumerate((1, 1, 0, 1, 2, 2, 3)):
        scores[step, number] = 0.8
    assert decode(scores, characters) == ("aab ", pytest.approx(0.8))
    assert decode(scores[2:3], characters) == ("", 0.0)


def test_a_model_without_characters_is_refused():
    with pytest.raises(ModelError, match="no characters in its metadata"):
        read_characters("")


def rows(*boxes):
    return [Box(x0, y0, x1, y0 + 10) for x0, y0, x1 in boxes]


def test_columns_are_read_one_after_the_other_below_their_heading():
    page = rows(
        (0, 0, 210), (0, 20, 90), (110, 20, 200), (110, 34, 205), (0, 34, 95), (0, 48, 90), (0, 70, 220)
    )
    assert reading_order(page) == [0, 1, 4, 5, 2, 3, 6]


def test_a_form_is_read_row_by_row():
    form = rows((0, 0, 30), (100, 0, 130), (0, 20, 35), (100, 20, 125))
    assert reading_order(form) == [0, 1, 2, 3]


def test_a_slanted_or_upside_down_page_is_read_as_a_level_one():
    lines = [[(0, y), (100, y), (100, y + 10), (0, y + 10)] for y in (0, 20, 40)]
    for degrees in (0, 9, -9):
        quads = [order_corners(turned(line, degrees)) for line in lines]
        assert reading_order(level_lines(quads)) == [0, 1, 2]
    flipped = [order_corners(turned(line, 180)) for line in lines]
    assert reading_order(level_lines(flipped, upside_down=True)) == [0, 1, 2]


def test_lines_that_run_upwards_come_last_from_below():
    quads = [
        order_corners(np.asarray([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], np.float64))
        for x0, y0, x1, y1 in ((0, 0, 10, 60), (0, 70, 10, 130), (20, 0, 120, 10), (20, 50, 120, 60))
    ]
    upright = [True, True, False, False]
    assert page_order(quads, upright, [True, True, False, False]) == [2, 3, 1, 0]
    assert page_order(quads, upright, [False] * 4) == [2, 3, 0, 1]
    assert len(page_order(quads, [True] * 4, [False] * 4)) == 4


def test_nothing_is_read_in_no_order():
    assert reading_order(level_lines([])) == []


@pytest.mark.parametrize(
    "size", [(20, 4000), (4000, 20), (40, 700), (700, 40), (2, 1500), (30, 30), (1, 1), (3000, 3000)]
)
def test_images_of_any_shape_stay_within_bounds(size):
    page = _prepared(np.zeros((*size, 3), np.uint8))
    height, width = page.pixels.shape[:2]
    assert max(height, width) <= 2016
    assert max(height, width) <= 8.1 * min(height, width)
    middle = (np.asarray((width, height)) / 2 - page.origin) * page.scale
    assert middle.tolist() == pytest.approx([size[1] / 2, size[0] / 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["notice.png", "scanned.png"])
def test_a_page_is_read_as_rapidocr_reads_it(name):
    golden = json.loads((DATA / "texts.json").read_text())["reading"][name]
    with open_real("ppocr") as model:
        reading = model.read(DATA / name)
    assert len(reading.lines) == len(golden)
    for expected in golden:
        xs, ys = zip(*expected["corners"], strict=True)
        box = Box(min(xs), min(ys), max(xs), max(ys))
        line = max(reading.lines, key=lambda line: line.box.iou(box))
        assert line.box.iou(box) >= 0.95
        if expected["score"] > 0.9:  # what is hardly legible may come out otherwise
            assert line.text == expected["text"]
            assert line.score == pytest.approx(expected["score"], abs=0.03)
    texts = [line.text for line in reading]
    if name == "notice.png":
        assert texts.index("Nobody was hurt.") < texts.index("Prices: 12.50 EUR each,")
        assert texts[-2:] == ["Evening", "edition"]  # they run upwards
    assert (reading.model, reading.license) == ("ppocr", "Apache-2.0")
    assert reading.draw(DATA / name).size == (reading.width, reading.height)


@pytest.mark.slow
def test_an_image_without_text_is_read_as_nothing():
    with open_real("ppocr") as model:
        (reading,) = model.read([np.full((64, 64, 3), 255, np.uint8)])
    assert (reading.text, reading.lines, reading.width) == ("", (), 64)
