"""Bodies as keys: equal to those that replicas report, for every protocol, and never an exception."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving import visiting
from stretto.deploy import asks
from stretto.deploy.asks import BLOCK_BYTES, MAX_EXACT_BYTES, MAX_PARSED_BYTES, TextModel, bearer, read_ask
from stretto.deploy.environment import BUFFER_BYTES
from stretto.deploy.policy import Ask
from stretto.deploy.prefixes import BLOCK_TOKENS, hash_tenant, report, saved_key, unpack_keys
from stretto.testing import mock_llm

STORY = "Once upon a time there was a mouse who lived behind the clock in the hall of an old house. "
SAID = [{"role": "user", "content": STORY}, {"role": "assistant", "content": "Yes?"}]
SAID += [{"role": "user", "content": STORY[::-1]}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


@pytest.fixture(scope="module")
def models():
    llm = mock_llm("Hi")
    return {"mock": TextModel(llm.tokenizer, llm.template)}


def dumped(**fields):
    return json.dumps({"model": "mock", **fields}).encode()


PROTOCOLS = {
    "/v1/completions": {"prompt": STORY * 2, "max_tokens": 2},
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 2, "temperature": 0.5, "user": "x"},
    "/v1/messages": {"messages": SAID, "system": STORY, "max_tokens": 2},
    "/v1/responses": {"input": SAID, "instructions": STORY, "max_output_tokens": 16},
    "/api/chat": {"messages": SAID, "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": STORY, "system": STORY, "stream": False, "options": {"num_predict": 2}},
}


@pytest.mark.parametrize("path", PROTOCOLS)
def test_keys_are_those_that_a_replica_reports(models, path):
    with visiting() as (server, web):
        body = {"model": "mock", **PROTOCOLS[path]}
        answer = web.post(path, json=body)
        assert answer.status_code == 200, answer.text
        ask = read_ask(json.dumps(body).encode(), models)
        assert ask.is_exact
        assert len(ask.keys) >= 4
        assert set(ask.keys) <= set(unpack_keys(report(server.state)["keys"]))


def test_parts_of_a_message_and_a_continued_one_have_the_servers_keys(models):
    said = [{"role": "user", "content": [{"type": "text", "text": STORY}, {"type": "text", "text": "Now."}]}]
    said.append({"role": "assistant", "content": STORY})
    fields = {"messages": said, "continue_final_message": True, "max_tokens": 1}
    with visiting() as (server, web):
        assert web.post("/v1/chat/completions", json={"model": "mock", **fields}).status_code == 200
        ask = read_ask(dumped(**fields), models)
        assert set(ask.keys) <= set(unpack_keys(report(server.state)["keys"]))
        assert len(ask.keys) >= 4


def test_the_next_turn_begins_with_the_keys_of_the_last_one(models):
    first = read_ask(dumped(messages=SAID[:1]), models).keys
    later = read_ask(dumped(messages=SAID), models).keys
    assert len(later) > len(first)
    assert list(later[: len(first)]) == list(first)


def test_a_prompt_with_an_image_has_the_keys_before_it(models):
    with_image = [*SAID, {"role": "user", "content": [PICTURE, {"type": "text", "text": "What?"}]}]
    found = read_ask(dumped(messages=with_image), models)
    plain = read_ask(dumped(messages=[*SAID, {"role": "user", "content": STORY}]), models)
    assert found.is_exact
    assert list(found.keys) == list(plain.keys[: len(found.keys)])
    assert len(found.keys) >= 4


def test_tenants_models_and_adapters_have_keys_of_their_own(models):
    data = dumped(messages=SAID)
    other = json.dumps({"model": "mock:fine", "messages": SAID}).encode()
    ways = [read_ask(data, models), read_ask(data, models, tenant=hash_tenant("a")), read_ask(other, models)]
    assert all(way.is_exact for way in ways)
    assert len({way.keys[0] for way in ways}) == 3


def test_an_unknown_model_is_known_by_its_text():
    asks = [read_ask(dumped(messages=SAID[:n]), {}) for n in (1, 3)]
    long = [read_ask(dumped(messages=[{"role": "user", "content": STORY * n}]), {}) for n in (9, 12)]
    assert [ask.is_exact for ask in asks] == [False, False]
    shared = [a == b for a, b in zip(*(ask.keys for ask in long), strict=False)]
    assert sum(shared) >= len(long[0].keys) - 1 > 1


def test_what_goes_on_with_a_response_is_known_by_its_id(models):
    ask = read_ask(dumped(input="More", previous_response_id="resp_1"), models)
    assert ask.saved == saved_key("resp_1")
    assert not ask.is_exact


def test_sessions_come_from_the_header_or_the_body():
    assert read_ask(dumped(prompt="x", prompt_cache_key="mine"), {}, "header").session == "header"
    assert read_ask(dumped(prompt="x", prompt_cache_key="mine"), {}).session == "mine"


def test_bodies_that_are_no_json_or_too_long_stick_by_their_beginning(models):
    for data in (b"{" * 100, b'"text"', b"[1]", b"\xff\xfe", b'{"model": "' + b"x" * MAX_PARSED_BYTES):
        one, two = read_ask(data, models), read_ask(data + b" ", models)
        assert len(one.keys) == len(data) // BLOCK_BYTES
        assert not one.is_exact
        assert one.session
        assert len(data) < 4096 or one.session == two.session
    assert read_ask(b"", models) == Ask([], is_exact=False)


def test_a_body_that_was_cut_off_is_known_by_its_bytes(models):
    said = [{"role": "user", "content": STORY * 10}]
    first, later, other = (dumped(messages=said + more) for more in ([], SAID, SAID[::-1]))
    keys, found, else_found = (read_ask(data[:-2], models).keys for data in (first, later, other))
    assert len(keys) >= 3
    assert list(found)[: len(keys) - 1] == list(else_found)[: len(keys) - 1] == list(keys)[:-1]
    assert found != else_found
    assert read_ask(first[:-2], models, tenant=b"x").keys != keys


def test_haproxys_buffer_holds_the_bodies_whose_tokens_are_made():
    assert 2 * MAX_EXACT_BYTES <= BUFFER_BYTES <= MAX_PARSED_BYTES


def test_remembered_texts_are_bounded(models, monkeypatch):
    monkeypatch.setattr(asks, "MEMO_CHARACTERS", 500)
    for n in range(20):
        read_ask(dumped(messages=[{"role": "user", "content": f"{n} {STORY}"}]), models)
    assert models["mock"].tokenizer.size <= 500


def test_a_long_new_prompt_is_known_by_its_beginning(models, monkeypatch):
    whole = read_ask(dumped(prompt=STORY * 40), models).keys
    monkeypatch.setattr(asks, "NEW_CHARACTERS", 1000)
    begun = read_ask(dumped(prompt=STORY * 40 + "."), models)
    assert begun.is_exact
    assert 25 <= len(begun.keys) <= 1000 // BLOCK_TOKENS
    assert list(begun.keys) == whole[: len(begun.keys)]
    assert read_ask(dumped(prompt=STORY * 40), models).keys == whole  # remembered


def test_a_tenant_is_the_holder_of_a_bearer_key():
    assert bearer("Bearer abc") == bearer("bearer  abc ") == hash_tenant("abc")
    assert [bearer(text) for text in ("", "Basic abc", "Bearer", "Bearer ")] == [b""] * 4


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=40))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = """
model messages prompt input system tools functions tool_choice lora previous_response_id think options raw
chat_template_kwargs instructions continue_final_message reasoning_effort prompt_cache_key
"""
NAMES = st.sampled_from(FIELDS.split())


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=8), st.text(max_size=20))
def test_no_body_raises(models, body, session):
    found = read_ask(json.dumps({"model": "mock", **body}).encode(), models, session)
    assert isinstance(found, Ask)
    assert all(0 <= key < 1 << 64 for key in found.keys)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_raise(models, data):
    assert isinstance(read_ask(data, models), Ask)


def test_no_damaged_body_raises(models):
    rng = random.Random(3)
    tool = {"type": "function", "function": FUNCTION}
    wholes = [dumped(**body) for body in PROTOCOLS.values()] + [dumped(messages=SAID, tools=[tool])]
    for _ in range(1500):
        data = bytearray(rng.choice(wholes))
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 9)] = rng.choice(
                (b"", b"[", b"}", b"null", b'"', b"1e999", b"\xff", b"-1")
            )
        assert isinstance(read_ask(bytes(data[: rng.randint(1, len(data))]), models), Ask)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 50_000, b'{"prompt": ' + b"9" * 5000 + b"}"])
def test_deep_and_long_json_does_not_raise(models, data):
    assert isinstance(read_ask(data, models), Ask)
