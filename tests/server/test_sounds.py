"""Sounds in requests: heard by a model that hears, counted, and refused by field where they are not right."""

import base64

import openai
import pytest

from serving import serving
from stretto.server.settings import RequestLimits
from stretto.testing import mock_llm
from tiny_sounds import hearing_llm, wav

LIMITS = RequestLimits(images=2, audio_seconds=3.0)


@pytest.fixture(scope="module")
def server():
    with serving(lambda entry: hearing_llm(), limits=LIMITS) as running:
        yield running


def audio(data, kind="wav"):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": kind}}


def said(*parts):
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "B?"}]}]


def ask(client, messages, **more):
    return client.chat.completions.create(
        model="mock", messages=messages, temperature=0, max_tokens=4, logprobs=True, **more
    )


def probabilities(answer):
    return [entry.logprob for entry in answer.choices[0].logprobs.content]


def test_a_sound_is_heard_and_counted(client, server):
    one, other, again = (ask(client, said(audio(wav("voxtral", i)))) for i in (1, 0, 1))
    assert probabilities(one) == probabilities(again) != probabilities(other)
    without = ask(client, said()).usage.prompt_tokens
    assert one.usage.prompt_tokens == without + 1 + 30  # a marker and three windows
    assert other.usage.prompt_tokens == without + 1 + 10
    assert again.usage.prompt_tokens_details.cached_tokens > 30
    both = ask(client, said(audio(wav("voxtral", 0)), audio(wav("voxtral", 3))))
    assert both.usage.prompt_tokens == without + 2 * 11
    alone = server.llm().chat(said(audio(wav("voxtral", 1))), temperature=0, max_tokens=4)
    assert alone.text == one.choices[0].message.content


@pytest.mark.parametrize(
    ("parts", "field", "message"),
    [
        ([audio(b"nothing")], "messages[0].content[0].input_audio.data", "no WAV file"),
        ([audio(wav("voxtral", 0)[:300])], "messages[0].content[0].input_audio.data", "it ends after"),
        ([audio(wav("voxtral", 0))] * 3, None, "at most 2"),
        (
            [{"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}],
            "messages[0].content[0].input_audio.data",
            "not base64",
        ),
        ([audio(wav("voxtral", 1))] * 2, "messages[0].content[1].input_audio.data", "lasts more than"),
        ([audio(b"RIFF", "midi")], "messages.0.content", "format"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}], None, "hears sounds"),
    ],
)
def test_what_is_wrong_with_a_sound_is_said(client, server, parts, field, message):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, said(*parts))
    assert message in error.value.message
    assert field is None or (error.value.param or "").replace("[", ".").replace("]", "").startswith(
        field.replace("[", ".").replace("]", "")
    )


def test_a_header_that_lies_is_refused_before_memory_is_taken(client, server):
    data = bytearray(wav("voxtral", 0))
    at = data.index(b"data") + 4
    data[at : at + 4] = (0xFFFFFF00).to_bytes(4, "little")
    with pytest.raises(openai.BadRequestError, match="it ends after"):
        ask(client, said(audio(bytes(data))))


def test_a_model_that_does_not_hear_refuses_sounds():
    with (
        serving(lambda entry: mock_llm("ok")) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as other,
    ):
        with pytest.raises(
            openai.BadRequestError, match="input_audio is not supported by this model"
        ) as error:
            ask(other, said(audio(wav("voxtral", 0))))
        assert error.value.param == "messages"
