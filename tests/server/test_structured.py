"""Answers that have to look like something, whatever the model would say."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema
import ollama
import openai
import pydantic
import pytest

from serving import serving, visiting
from stretto.server.settings import RequestLimits
from stretto.structured import workers
from stretto.testing import mock_llm

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CHAT = {"model": "mock", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 400}


@pytest.fixture(scope="module")
def server():
    """A model that says whatever it likes, which is anything."""
    with serving(
        lambda entry: mock_llm(lambda seen: [(7 * t + len(seen)) % 13 for t in range(258)])
    ) as running:
        yield running


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=150)


def test_a_schema_is_kept_to_whole_and_streamed(client):
    shape = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    for seed in range(5):
        asked = {**CHAT, "response_format": shape, "seed": seed}
        answer = client.chat.completions.create(**asked)
        assert answer.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)
        with client.chat.completions.create(**asked, stream=True) as stream:
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert streamed == answer.choices[0].message.content


def test_strict_closes_objects(client):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}}
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    for seed in range(5):
        answer = client.chat.completions.create(**CHAT, response_format=shape, seed=seed)
        assert json.loads(answer.choices[0].message.content).keys() <= {"n"}


def test_any_object_may_have_a_schema_too(client):
    for shape in (
        {"type": "json_object", "schema": PERSON},
        {
            "type": "json_schema",
            "json_schema": {"schema": PERSON},
        },  # as llama.cpp's clients leave the name out
    ):
        answer = client.chat.completions.create(**CHAT, response_format=shape)
        jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)


def test_openai_parses_into_classes(client):
    answer = client.chat.completions.parse(**CHAT, response_format=Person, seed=3)
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_any_json_object(client):
    answer = client.chat.completions.create(
        **{**CHAT, "max_tokens": 900}, response_format={"type": "json_object"}, seed=1
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    assert answer.choices[0].message.content.startswith("{")


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"type": "regex", "pattern": r"\d{4}-\d{2}"}, r"\d{4}-\d{2}"),
        ({"type": "choices", "choices": ["yes", "no"]}, "yes|no"),
        ({"type": "lark", "grammar": 'start: "a" "b"+ "."'}, r"ab+\."),
        ({"type": "json", "schema": {"type": "boolean"}}, "true|false"),
    ],
)
def test_grammars_of_every_kind(client, grammar, pattern):
    chat = client.chat.completions.create(**CHAT, extra_body={"grammar": grammar}, seed=1)
    assert re.fullmatch(pattern, chat.choices[0].message.content)
    text = client.completions.create(
        model="mock", prompt="a", max_tokens=300, n=2, extra_body={"grammar": grammar}, seed=2
    )
    assert all(re.fullmatch(pattern, choice.text) for choice in text.choices)


def test_ollama_takes_a_schema(server):
    client = ollama.Client(host=server.url)
    answer = client.chat(model="mock", messages=CHAT["messages"], format=PERSON, options={"seed": 1})
    jsonschema.validate(json.loads(answer.message.content), PERSON)
    drawn = client.generate(model="mock", prompt="a", format={"enum": ["x", "y"]}, options={"seed": 1})
    assert json.loads(drawn.response) in ("x", "y")
    client.close()


WRONG = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}},
        "response_format",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
        "response_format",
    ),
    ({"grammar": {"type": "regex", "pattern": "("}}, "grammar"),
    ({"grammar": {"type": "lark", "grammar": "start: nothing"}}, "grammar"),
    ({"grammar": {"type": "choices", "choices": [""]}}, "grammar"),
    ({"grammar": {"type": "regex", "pattern": "a"}, "response_format": {"type": "json_object"}}, "grammar"),
    ({"grammar": {"type": "regex", "pattern": "a"}, "ignore_eos": True}, None),
    ({"grammar": {"type": "regex", "pattern": "a" * 70_000}}, "grammar.pattern"),
    ({"grammar": {"type": "json", "schema": {"$ref": "http://elsewhere/x"}}}, "grammar"),
]


@pytest.mark.parametrize(("wrong", "param"), WRONG, ids=lambda value: str(value)[:50])
def test_a_grammar_that_cannot_be_used_is_refused(client, wrong, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**CHAT, extra_body=wrong)
    if param is not None:
        assert refused.value.param == param


def test_schemas_have_a_limit():
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["x" * 200]}}}
    with visiting(limits=RequestLimits(schema=100)) as (_, web):
        refused = web.post("/v1/chat/completions", json={**CHAT, "response_format": shape})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "over_limit")


SLOW = {  # rewritten in several ways, none of which the parser takes
    "type": "string",
    "allOf": [{"pattern": "^([a-z][0-9])+$"}, {"pattern": "^((c1d3g3).{4,8}){6}"}, {"pattern": "(t|8){10}$"}],
}


def slow_schema(number):
    return {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {**SLOW, "minLength": 900 + number}},
    }


def test_a_shutdown_does_not_wait_for_a_grammar():
    with ThreadPoolExecutor(1) as pool:
        with serving(grace_seconds=0.2) as server:
            body = {**CHAT, "response_format": slow_schema(7)}
            waiting = pool.submit(httpx.post, f"{server.url}/v1/chat/completions", json=body, timeout=60)
            while not any(thread.name == "stretto-grammar" for thread in threading.enumerate()):
                assert not waiting.done(), waiting.result().text
        answer = waiting.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")


def test_slow_schemas_of_one_key_delay_only_its_own(monkeypatch):
    """Another key's schema is compiled meanwhile; slow ones are refused as such, or may be tried again."""
    monkeypatch.setattr(workers, "MAX_CPU_SECONDS", 0.05)
    opener = lambda entry: mock_llm(lambda seen: [(7 * t + len(seen)) % 13 for t in range(258)])  # noqa: E731
    with serving(opener, api_keys=("ann", "bob")) as server, ThreadPoolExecutor(48) as pool:

        def ask(key, form):
            headers = {"authorization": f"Bearer {key}"}
            body = {**CHAT, "response_format": form}
            return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)

        answers = [pool.submit(ask, "ann", slow_schema(i)) for i in range(48)]
        while not any(thread.name == "stretto-grammar" for thread in threading.enumerate()):
            pass
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}
        fine = ask("bob", form)
        assert fine.status_code == 200, fine.text
        jsonschema.validate(json.loads(fine.json()["choices"][0]["message"]["content"]), PERSON)
        n_threads = sum(thread.name == "stretto-grammar" for thread in threading.enumerate())
        assert 1 <= n_threads <= workers.N_WORKERS // 2
        refused = {future.result().status_code for future in answers}
    assert refused == {400, 503}
    busy = next(f.result() for f in answers if f.result().status_code == 503)
    assert int(busy.headers["retry-after"]) > 0
    assert busy.json()["error"]["code"] == "grammars_busy"
