"""What only one family does: sizes of images, markers around their tokens, images of several shapes."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.errors import InvalidRequest
from stretto.vision.chat import ImageMessages
from stretto.vision.families import FAMILIES
from stretto.vision.families.base import Run, Special, Text
from stretto.vision.image import Image
from stretto.vision.queue import find_grid, prepare
from tiny_vision import PICTURES, picture, seeing_llm, vision_answer, vision_spec


def layout(name, i=1):
    """The parts of a picture in a prompt, and its spec."""
    spec = vision_spec(name)
    prepared = prepare(picture(i), spec)
    grid = find_grid(prepared.tiles, spec)
    return list(FAMILIES[spec.projector].parts(prepared, spec, grid)), spec, grid


def test_a_token_ends_each_row_of_pixtral():
    parts, spec, (rows, columns) = layout("pixtral")
    runs, ends = parts[::2], parts[1::2]
    assert len(runs) == rows // spec.merge == 5
    assert {run.stop - run.first for run in runs} == {columns // spec.merge}
    assert ends == [Special("[IMG_BREAK]")] * 4 + [Special("[IMG_END]")]


def test_all_tiles_of_internvl_lie_between_two_markers():
    parts, spec, _ = layout("internvl", 0)
    assert parts[0] == Special("<img>")
    assert parts[-1] == Special("</img>")
    assert parts[1:-1] == [Run(i * spec.n_tokens, (i + 1) * spec.n_tokens) for i in range(5)]


def test_tokens_of_llava_next_without_what_fills_its_tiles():
    """The whole image, then the tiles row by row, each of which a vector of the file ends."""
    for i in PICTURES:
        parts, _, _ = layout("llava-next", i)
        flat = vision_answer("llava-next", f"vectors.{i}").reshape(-1, 32)
        found = np.concatenate([flat[run.first : run.stop] for run in parts])
        np.testing.assert_array_equal(found, vision_answer("llava-next", f"packed.{i}"))


def test_tiles_of_llama4_have_separators():
    parts, spec, _ = layout("llama4")
    names = [part.text for part in parts if isinstance(part, Special)]
    between = ["<|tile_x_separator|>", "<|tile_y_separator|>"]
    assert names == ["<|image_start|>", *between, *between, "<|image|>", "<|image_end|>"]
    assert [part for part in parts if isinstance(part, Run)] == [Run(9 * i, 9 * i + 9) for i in range(5)]
    assert spec.n_tokens == 9


def test_markers_of_one_run():
    for name, first, last in (
        ("gemma4v", "<|image>", "<image|>"),
        ("qwen3vl", "<|vision_start|>", "<|vision_end|>"),
        ("qwen25vl", "<|vision_start|>", "<|vision_end|>"),
    ):
        parts, spec, grid = layout(name)
        assert (parts[0], parts[-1]) == (Special(first), Special(last))
        (run,) = parts[1:-1]
        assert (run.first, run.stop) == (0, spec.count_tokens(grid))
        assert run.columns == (grid[1] // spec.merge if name != "gemma4v" else 0)


def test_line_breaks_of_smolvlm():
    parts, _, _ = layout("idefics3")
    assert [part.text for part in parts if isinstance(part, Text)] == ["\n", "\n\n"]


def shape(name, width, height, **changes):
    spec = replace(vision_spec(name), **changes)
    tiles = prepare(Image.open(np.zeros((height, width, 3), np.uint8)), spec).tiles
    return tiles.shape[1:3]


REAL = {"patch_size": 14, "image_size": 1540, "longest_edge": 1540}
QWEN = {"patch_size": 16, "min_tokens": 64, "max_tokens": 4096}
GEMMA = {"patch_size": 16, "max_tokens": 280}


@pytest.mark.parametrize(
    ("name", "changes", "size", "wanted"),
    [
        ("pixtral", REAL, (640, 480), (504, 644)),
        ("pixtral", REAL, (3000, 2000), (1036, 1540)),
        ("pixtral", REAL, (1, 1), (28, 28)),
        ("pixtral", REAL, (4000, 3), (28, 1540)),
        ("qwen3vl", QWEN, (640, 480), (480, 640)),
        ("qwen3vl", QWEN, (100, 100), (256, 256)),
        ("qwen3vl", QWEN, (4096, 4096), (2048, 2048)),
        ("gemma4v", GEMMA, (640, 480), (672, 912)),
        ("gemma4v", GEMMA, (4000, 2), (48, 280 * 48)),
        ("gemma4v", GEMMA, (2, 30), (64 * 48, 4 * 48)),
    ],
)
def test_sizes_of_real_models(name, changes, size, wanted):
    """As the models' processors have them: pixels are whole squares of patches, and not too many."""
    assert shape(name, *size, **changes) == wanted


def test_images_that_are_far_too_long():
    with pytest.raises(InvalidRequest, match="over 200 times"):
        shape("qwen3vl", 2010, 10)


@pytest.mark.parametrize("name", ["pixtral", "internvl", "gemma4v"])
def test_images_of_several_shapes_at_once(name):
    """Each is encoded with others of its size only; together or alone, the text is the same."""
    options = {"max_tokens": 4, "temperature": 0}
    prompts = [(picture(i), "ab") for i in (0, 1, 2, 1)]
    with seeing_llm(name, cells=512) as llm:
        together = [result.tokens for result in llm.generate(prompts, **options)]
        assert llm.vision.n_encoded == sum(len(prepare(picture(i), llm.vision.spec).tiles) for i in (0, 1, 2))
    for prompt, wanted in zip(prompts, together, strict=True):
        with seeing_llm(name, cells=512) as llm:
            assert llm.generate(prompt, **options).tokens == wanted


@pytest.mark.golden
@pytest.mark.parametrize(("backend", "tolerance"), [("reference", 1e-4), ("native", 0.05)])
@pytest.mark.parametrize("text", ["gemma4", "gemma4-e"])
def test_logits_behind_an_image_of_gemma4(text, backend, tolerance):
    """Its tokens see each other in layers with a window, in models without embeddings of each layer."""
    before, after = (vision_answer("qwen3vl", key).tolist() for key in ("before", "after"))
    wanted = vision_answer("gemma4v", f"logits-{text}")[-len(after) - 1 :]
    with seeing_llm("gemma4v", backend, text=text) as llm:
        assert llm.spec.windowed_images == (text == "gemma4")
        seq = llm.sequence(before)
        seq.append(picture(1))
        found = [seq.logits.copy()]
        for token in after:
            seq.append(token)
            found.append(seq.logits.copy())
    assert np.abs(np.stack(found) - wanted).max() < tolerance


@pytest.mark.parametrize("name", ["pixtral", "internvl", "gemma4v"])
def test_a_second_question_about_an_image_of_any_shape(name):
    with seeing_llm(name, cells=512) as llm:
        first = llm.generate((picture(1), "ab"), max_tokens=2, temperature=0)
        n_encoded = llm.vision.n_encoded
        second = llm.generate((picture(1), "cd"), max_tokens=2, temperature=0)
        assert llm.vision.n_encoded == n_encoded
        assert second.usage.cached_tokens == first.usage.prompt_tokens - 2


def test_markers_that_a_template_writes_around_an_image():
    """Qwen's templates write what comes with the image as well; it stands there once."""
    specials = {"<|vision_start|>": 1, "<|image_pad|>": 2, "<|vision_end|>": 3}
    messages = ImageMessages([{"role": "user", "content": [picture(0), "hi"]}], "image")
    found = list(messages.resolve(["user ", 1, 2, 3, "hi", 1, 3], specials))
    assert found[:1] + found[2:] == ["user ", "hi", 1, 3]
    assert isinstance(found[1], Image)
    assert messages.n_placed == 1
