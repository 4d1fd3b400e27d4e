"""`llm` with models of Stretto: answers, conversations, options, images, schemas, tools, vectors."""

import asyncio
import json

import llm
import pytest
from click.testing import CliRunner
from PIL import Image

import stretto

GREEDY = {"temperature": 0, "max_tokens": 16}
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def expected(smollm2):
    with stretto.load(smollm2, cells=1024) as model:
        yield model.chat([{"role": "user", "content": QUESTION}], **GREEDY).text


def test_the_command_answers(run, expected):
    done = run("-m", "stretto/smollm2", QUESTION, "-o", "temperature", 0, "-o", "max_tokens", 16)
    assert (done.returncode, done.stdout.strip()) == (0, expected.strip())


def test_the_command_embeds(run):
    vector = json.loads(run("embed", "-m", "stretto/minilm", "-c", "a cat", "-f", "json").stdout)
    assert len(vector) == 384
    assert sum(number * number for number in vector) == pytest.approx(1, abs=1e-3)


def test_a_conversation_is_continued(plugin):
    talk = llm.get_model("stretto/smollm2").conversation()
    first = talk.prompt("My name is Ada. Say hello to me.", **GREEDY)
    first.text()
    second = talk.prompt("What is my name?", **GREEDY)
    assert second.text()
    assert second.usage().input > first.usage().input + first.usage().output
    assert second.usage().details["cached_tokens"] >= first.usage().input


def test_a_stream_gives_the_text_in_pieces(plugin, expected):
    response = llm.get_model("stretto/smollm2").prompt(QUESTION, **GREEDY)
    pieces = list(response)
    assert len(pieces) > 3
    assert "".join(pieces) == response.text() == expected
    assert response.usage().output == 16 or response.response_json["finish_reason"] == "stop"


def test_a_system_prompt_is_the_first_message(plugin, smollm2):
    model = llm.get_model("stretto/smollm2")
    text = model.prompt(QUESTION, system="You speak like a pirate.", **GREEDY).text()
    messages = [
        {"role": "system", "content": "You speak like a pirate."},
        {"role": "user", "content": QUESTION},
    ]
    with stretto.load(smollm2, cells=1024) as plain:
        assert text == plain.chat(messages, **GREEDY).text


def test_a_schema_gives_json_that_fits(plugin):
    age = {"type": "integer", "minimum": 0, "maximum": 30}
    schema = {
        "type": "object",
        "properties": {"age": age},
        "required": ["age"],
        "additionalProperties": False,
    }
    response = llm.get_model("stretto/smollm2").prompt("A dog", schema=schema, temperature=0, max_tokens=40)
    assert isinstance(json.loads(response.text())["age"], int)


def test_images_are_attachments_of_a_model_that_sees(plugin, folder, smollm2):
    names = {"sees": {"model": str(smollm2), "vision": "sketch", "cells": 2048}}
    (folder / "stretto.json").write_text(json.dumps(names))
    path = folder / "red.png"
    Image.new("RGB", (32, 32), "red").save(path)
    image = llm.Attachment(path=str(path), type="image/png")
    response = llm.get_model("stretto/sees").prompt("What is this?", attachments=[image], **GREEDY)
    without = llm.get_model("stretto/sees").prompt("What is this?", **GREEDY)
    assert response.text()
    without.text()
    assert response.usage().input > without.usage().input
    with pytest.raises(ValueError, match="does not support attachments"):
        llm.get_model("stretto/smollm2").prompt("What is this?", attachments=[image])


def test_a_tool_is_called_and_its_result_is_told(plugin):
    from llm_stretto.messages import conversation, tool_descriptions

    def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    tool = llm.Tool.function(weather)
    (described,) = tool_descriptions([tool])
    assert described["function"]["name"] == "weather"
    assert described["function"]["parameters"]["required"] == ["city"]
    calls = llm.assistant(llm.parts.ToolCallPart("weather", {"city": "Rome"}, "id1"))
    results = llm.tool_message(llm.parts.ToolResultPart("weather", "sunny in Rome", "id1"))
    made = conversation([llm.user("How is it in Rome?"), calls, results])
    assert [one["role"] for one in made] == ["user", "assistant", "tool"]
    assert made[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert made[2]["content"] == "sunny in Rome"


def test_calls_that_the_model_writes_become_calls_of_llm(plugin, monkeypatch):
    from llm_stretto.names import Named
    from stretto.testing import mock_llm
    from stretto.text.template import ChatTemplate

    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    template = (
        "{% if tools %}<tool_call> {{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}"
        "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
        "{% endfor %}{% endif %}{% endfor %}"
    )
    model = mock_llm(call)
    model._template = ChatTemplate(template, model.tokenizer.specials)
    monkeypatch.setattr(Named, "load", lambda self: model)
    tool = llm.Tool.function(lambda city: city, name="weather")
    response = llm.get_model("stretto/smollm2").prompt("How is it in Rome?", tools=[tool], temperature=0)
    assert [(one.name, one.arguments) for one in response.tool_calls()] == [("weather", {"city": "Rome"})]


def test_asyncio_has_the_same_answers(plugin, expected):
    async def main():
        response = llm.get_async_model("stretto/smollm2").prompt(QUESTION, **GREEDY)
        return [piece async for piece in response]

    assert "".join(asyncio.run(main())) == expected


def test_errors_of_stretto_are_shown_by_llm(plugin):
    with pytest.raises(llm.ModelError, match="temperature must be"):
        llm.get_model("stretto/smollm2").prompt("Hi", temperature=-1).text()
    with pytest.raises(ValueError, match="max_new_tokens"):
        llm.get_model("stretto/smollm2").prompt("Hi", max_new_tokens=3)


def test_a_model_of_your_own_gets_a_name(plugin, folder, smollm2):
    def run(*arguments):
        return CliRunner().invoke(plugin.commands, list(map(str, arguments)))

    added = run("add", "mine", smollm2, "-o", "cells", 512)
    assert added.output.strip() == "llm -m stretto/mine runs it"
    assert json.loads((folder / "stretto.json").read_text()) == {
        "mine": {"model": str(smollm2), "cells": 512}
    }
    assert "stretto/mine: chat, embed" in run("list").output
    assert llm.get_model("stretto/mine").named.options == {"cells": 512}
    assert run("remove", "mine").exit_code == 0
    assert "mine" not in run("list").output
    assert "is no name of your own" in run("remove", "mine").output


def test_a_damaged_file_of_names_stops_no_other_model(plugin, folder, capsys):
    (folder / "stretto.json").write_text('{"mine": {}}')
    assert llm.get_model("stretto/smollm2").model_id == "stretto/smollm2"
    assert "must be JSON like" in capsys.readouterr().err
