"""Images become inputs, and boxes of the inputs become boxes of the images."""

import numpy as np
import pytest

from stretto.tasks.images.prepare import Preparation, prepare, resize

RNG = np.random.default_rng(3)


def photo(height, width):
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def slow_linear(pixels, width, height):
    """The definition, pixel by pixel."""
    rows, columns = pixels.shape[:2]
    made = np.empty((height, width, 3))
    for y in range(height):
        for x in range(width):
            v = min(max((y + 0.5) * rows / height - 0.5, 0), rows - 1)
            u = min(max((x + 0.5) * columns / width - 0.5, 0), columns - 1)
            i, j = int(v), int(u)
            k, m = min(i + 1, rows - 1), min(j + 1, columns - 1)
            a, b = v - i, u - j
            upper = (1 - b) * pixels[i, j] + b * pixels[i, m]
            made[y, x] = (1 - a) * upper + a * ((1 - b) * pixels[k, j] + b * pixels[k, m])
    return made


@pytest.mark.parametrize(("height", "width"), [(5, 9), (20, 4), (40, 60), (13, 17)])
def test_linear_resizing_is_its_definition(height, width):
    pixels = photo(13, 17)
    made = resize(pixels, width, height, "linear").astype(float)
    assert made == pytest.approx(slow_linear(pixels, width, height), abs=0.501)


def test_numbers_are_scaled_by_channel():
    pixels = np.full((4, 4, 3), (255, 0, 51), np.uint8)
    how = Preparation(2, 2, mean=(0.5, 0.5, 0.5), std=(0.5, 0.25, 1), filter="nearest")
    assert prepare(pixels, how)[0][:, 0, 0] == pytest.approx([1, -2, -0.3])
    how = Preparation(2, 2, bgr=True, channels_last=True)
    tensor = prepare(pixels, how)[0]
    assert tensor.shape == (2, 2, 3)
    assert tensor[0, 0] == pytest.approx([0.2, 0, 1])
    assert tensor.dtype == np.float32


@pytest.mark.parametrize("fit", ["stretch", "crop", "letterbox"])
@pytest.mark.parametrize("size", [(200, 300), (300, 200), (64, 64), (7, 90), (1, 1)])
def test_boxes_return_to_where_they_were(fit, size):
    """A mark in the image is found in the input where the placement says."""
    height, width = size
    pixels = np.zeros((height, width, 3), np.uint8)
    y, x = height // 2, width // 2
    box = [x - width // 8, y - height // 8, x + width // 8 + 1, y + height // 8 + 1]
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    how = Preparation(96, 64, fit=fit, fill=0, edge=80 if fit == "crop" else None)
    tensor, placement = prepare(pixels, how)
    assert tensor.shape == (3, 64, 96)
    rows, columns = np.nonzero(tensor[0] >= 0.5)
    seen = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]])
    tolerance = 0.6 * max(1 / placement.scale_x, 1 / placement.scale_y, 1)
    cut = placement.to_image(np.array([[0, 0, 96, 64]]))[0]  # a crop shows a part only
    wanted = np.clip(box, [*cut[:2], *cut[:2]], [*cut[2:], *cut[2:]])
    assert placement.to_image(seen)[0] == pytest.approx(wanted, abs=tolerance)


def test_a_letterbox_keeps_the_shape():
    tensor, placement = prepare(np.full((50, 100, 3), 255, np.uint8), Preparation(64, 64, fit="letterbox"))
    assert (tensor[:, 16:48] == 1).all()
    assert tensor[:, :16] == pytest.approx(114 / 255)
    assert (placement.scale_x, placement.scale_y, placement.top) == (0.64, 0.64, 16)
    how = Preparation(64, 64, fit="letterbox", centered=False)
    assert (prepare(np.full((50, 100, 3), 255, np.uint8), how)[0][:, :32] == 1).all()


def test_boxes_end_at_the_image():
    _, placement = prepare(photo(50, 100), Preparation(64, 64, fit="letterbox"))
    assert placement.to_image(np.array([[-9.0, 0, 99, 64]])).tolist() == [[0, 0, 100, 50]]


@pytest.mark.parametrize("fit", ["stretch", "crop", "letterbox"])
@pytest.mark.parametrize("shape", [(1, 4_000_000, 3), (4_000_000, 1, 3)])
def test_long_images_cost_no_more_than_others(fit, shape):
    for how in ("linear", "bicubic"):
        tensor, _ = prepare(np.zeros(shape, np.uint8), Preparation(224, 224, fit=fit, edge=256, filter=how))
        assert tensor.shape == (3, 224, 224)
