"""Parts of messages: texts are joined where a template has only texts, unknown parts are refused by name."""

import pytest

from stretto.errors import InvalidRequest, ModelError
from stretto.server.http.served_model import make_served
from stretto.server.settings import ModelEntry, Settings
from stretto.testing import mock_llm
from stretto.text.messages import with_known_parts
from stretto.vision import Image

TEXTS = "{{ message.content }}"
TYPED = "{% for part in message.content %}{% if part.type == 'text' or part['type'] == 'quote' %}…"


def user(*parts):
    return [{"role": "user", "content": list(parts)}]


def text(content):
    return {"type": "text", "text": content}


def test_texts_are_joined_for_a_template_of_texts_and_left_to_one_that_knows_parts():
    messages = user(text("a"), "b")
    assert with_known_parts(messages, TEXTS) == [{"role": "user", "content": "a\nb"}]
    assert with_known_parts(messages, TYPED) == messages
    plain = [{"role": "user", "content": "a"}]
    assert with_known_parts(plain, TEXTS) is plain


def test_a_conversation_of_parts_reads_as_text():
    llm = mock_llm("ok")
    ids = llm.chat_prompt(user(text("What"), text("is it?")))
    assert "user\nWhat\nis it?<|end|>" in llm.tokenizer.decode(ids, special=True)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            {"type": "input_audio", "input_audio": {}},
            "'input_audio': this model hears no sound; .*stretto transcribe",
        ),
        ({"type": "audio"}, "'audio': this model hears no sound"),
        ({"type": "video_url"}, "'video_url': films are not taken"),
        ({"type": "input_file"}, "'input_file': files are not opened"),
        ({"type": "zebra"}, "template knows no parts of type 'zebra'"),
    ],
)
@pytest.mark.parametrize("source", [TEXTS, TYPED])
def test_parts_that_nothing_reads_are_refused_by_name(part, said, source):
    with pytest.raises(InvalidRequest, match=rf"messages\[0\]\.content\[1\]: .*{said}"):
        with_known_parts(user(text("a"), part), source)


def test_a_model_that_hears_takes_sounds():
    messages = user(text("a"), {"type": "input_audio", "input_audio": {}})
    assert with_known_parts(messages, TYPED, hears=True) == messages


def test_a_part_that_the_template_names_is_its_own():
    messages = user(text("a"), {"type": "quote", "of": "b"})
    assert with_known_parts(messages, TYPED) == messages


@pytest.mark.parametrize(
    "data", [b"<svg/>", b"\xef\xbb\xbf\n<?xml version='1.0'?>\n<!-- x --><SVG width='1'>", b"<!-- a --><svg>"]
)
def test_a_drawing_without_pixels_is_refused_by_name(data):
    with pytest.raises(InvalidRequest, match="is an SVG: a drawing, without pixels; save it as PNG"):
        Image.open(data)
    with pytest.raises(InvalidRequest, match="none of PNG"):
        Image.open(b"<?xml version='1.0'?><html>")


@pytest.mark.golden
def test_a_served_model_has_the_bundled_encoder_by_its_name(smollm2_path):
    entries = ModelEntry.with_vision((ModelEntry.parse(f"small={smollm2_path}"),), ("sketch",))
    served = make_served(entries[0], Settings(entries, port=0), 1 << 40)
    assert served.facts["vision"]
    assert served.facts["memory"]["image encoder"] > 0
    wrong = ModelEntry.with_vision((ModelEntry.parse(f"small={smollm2_path}"),), ("./none.gguf",))
    with pytest.raises(ModelError, match="no such file"):
        make_served(wrong[0], Settings(wrong, port=0), 1 << 40)
