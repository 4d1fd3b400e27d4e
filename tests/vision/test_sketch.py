"""The encoder that comes with us, with the default model: it sees plain drawings."""

import pytest
from PIL import Image, ImageDraw

import stretto
from stretto.loading.images import find_encoder
from stretto.loading.open import open_model
from stretto.options.loading import LoadOptions

SHAPES = {
    "circle": lambda pen, ink: pen.ellipse((30, 30, 98, 98), fill=ink),
    "square": lambda pen, ink: pen.rectangle((34, 34, 94, 94), fill=ink),
    "triangle": lambda pen, ink: pen.polygon([(64, 24), (104, 92), (24, 92)], fill=ink),
}
INKS = {"red": (215, 30, 35), "green": (35, 150, 55), "blue": (40, 75, 215)}


def picture(shape, colour):
    drawn = Image.new("RGB", (128, 128), (245, 245, 245))
    SHAPES[shape](ImageDraw.Draw(drawn), INKS[colour])
    return stretto.Image.open(drawn)


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with stretto.load(smollm2_path, vision="sketch", cells=2048) as found:
        yield found


def answers(llm, question):
    """What it says about every shape in every color, all in one batch: (right, said)."""
    things = [(shape, colour) for shape in SHAPES for colour in INKS]
    prompts = [
        llm.chat_prompt([{"role": "user", "content": [picture(*thing), question]}]) for thing in things
    ]
    results = llm.generate(prompts, temperature=0, max_tokens=8)
    return things, [result.text.strip() for result in results]


def test_it_names_colours(llm):
    things, said = answers(llm, "What color is the shape?")
    assert said == [colour for _, colour in things]


def test_it_names_shapes(llm):
    things, said = answers(llm, "What shape is this?")
    assert said == [shape for shape, _ in things]


def test_a_picture_is_a_prefix_like_any_other(llm):
    image = picture("square", "green")
    for question, answer in {"What color is the shape?": "green", "What shape is this?": "square"}.items():
        before = llm.metrics.prompt_tokens
        result = llm.chat([{"role": "user", "content": [image, question]}], temperature=0, max_tokens=8)
        assert result.text.strip() == answer
        computed = llm.metrics.prompt_tokens - before
    assert computed < 64  # the tokens of the picture were not computed again


def test_prompts_on_disk_depend_on_the_encoders_file_too(smollm2_path):
    opened = open_model(smollm2_path, LoadOptions(vision="sketch", cells=64))
    opened.backend.close()
    assert {smollm2_path, find_encoder("sketch")} <= set(opened.files)
