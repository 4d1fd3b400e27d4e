"""Bodies of hostile shapes: few errors, bounded values, and nothing of it on the event loop for long."""

import asyncio
import gc
import json
import random
import sys
import threading
import time
import traceback
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from serving import visiting
from stretto.server import answers, bodies, own
from stretto.server.app import ROUTERS
from stretto.server.bodies import MAX_FIELDS, count_values, most_fields, parsed, validated
from stretto.server.errors import ApiError, dumps
from stretto.server.guard import FORM_PATHS
from stretto.server.lean import body_routes
from stretto.server.schemas import ChatRequest, CompletionRequest, EmbeddingRequest
from stretto.server.settings import RequestLimits
from stretto.server.structured import is_longer

LIMITS = RequestLimits()
MODEL = {"model": "mock"}
CHAT = {**MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CompletionRequest, {**MODEL, "prompt": [None] * 2000}),
        (CompletionRequest, {**MODEL, "prompt": [[]] * 2000}),
        (CompletionRequest, {**MODEL, "prompt": [[None] * 100] * 2000}),
        (CompletionRequest, {**MODEL, "prompt": "x", "stop": [0] * 60}),
        (EmbeddingRequest, {**MODEL, "input": [None] * 2000}),
        (ChatRequest, {**MODEL, "messages": [{"a": 0}] * 2000}),
        (ChatRequest, {**CHAT, "tools": [{}] * 2000}),
        (ChatRequest, {**CHAT, "messages": [{"role": "user", "content": [{}] * 1000}]}),
        (own.TokenizeRequest, {**MODEL, "tokens": [None] * 10_000}),
    ],
)
def test_a_list_fails_at_its_first_wrong_value(model, body):
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    assert refused.value.error_count() < 40
    with pytest.raises(ApiError) as answered:
        validated(model, body)
    assert answered.value.param


def lists(schema):
    """The lists anywhere in a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for inner in schema.values():
            yield from lists(inner)
    elif isinstance(schema, (list, tuple)):
        for inner in schema:
            yield from lists(inner)


def test_every_list_of_every_body_fails_fast():
    models = {model for model, _ in body_routes(ROUTERS).values()}
    found = [entry for model in models for entry in lists(model.__pydantic_core_schema__)]
    assert len(found) > 20
    assert all(entry["fail_fast"] for entry in found)


def test_every_endpoint_with_a_body_is_served_here():
    """None is left to FastAPI, whose validation knows no bounds."""
    paths = set(body_routes(ROUTERS))
    posts = {route.path: route for router in ROUTERS for route in router.routes if "POST" in route.methods}
    others = posts.keys() - paths
    assert others == {*FORM_PATHS, "/slots/{number}"}  # which read theirs themselves
    assert [path for path in others if posts[path].body_field] == []


def test_an_object_has_so_many_fields_and_no_more():
    fields = {f"k{number}": 0 for number in range(MAX_FIELDS)}
    assert parsed(json.dumps(fields).encode(), LIMITS) == fields
    for body in ({**fields, "one": 1}, [{"deep": {**fields, "one": 1}}]):
        with pytest.raises(ApiError, match="2,049 fields") as refused:
            parsed(json.dumps(body).encode(), LIMITS)
        assert (refused.value.status, refused.value.code) == (400, "over_limit")


def fields_of(value):
    """How many fields the objects anywhere in a value have."""
    if isinstance(value, dict):
        yield len(value)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from fields_of(inner)


def test_fields_are_counted_before_they_are_read(monkeypatch):
    rng = random.Random(1)

    def value(depth):
        kind = rng.randrange(4) if depth else 3
        if kind == 0:
            return {
                f'"{number}:{{' + "\\" * rng.randrange(3): value(depth - 1)
                for number in range(rng.randrange(5))
            }
        return (
            [value(depth - 1) for _ in range(rng.randrange(4))]
            if kind < 3
            else rng.choice([0, ":", "}{", None])
        )

    values = [value(6) for _ in range(300)]
    assert {max(fields_of(one), default=0) for one in values} == {0, 1, 2, 3, 4}
    for size in (5, bodies.CHUNK_BYTES):
        monkeypatch.setattr(bodies, "CHUNK_BYTES", size)
        for one in values:
            assert most_fields(json.dumps(one).encode()) == max(fields_of(one), default=0)
    for damaged in (b"", b'"', b":", b"]]]:{", b"}:{:}:"):
        most_fields(damaged)
    monkeypatch.setattr(bodies.json, "loads", None)
    with pytest.raises(ApiError, match="20,000 fields"):
        parsed(json.dumps({f"k{number}": 0 for number in range(20_000)}).encode(), LIMITS)


def test_a_number_has_so_many_digits_and_no_more():
    padding = b" " * bodies.SMALL_BYTES
    assert parsed(b"[12345678901234567890, 1.5e300]" + padding, LIMITS) == [12345678901234567890, 1.5e300]
    for number in (b"9" * 101, b"-" + b"9" * 4000, b"0." + b"9" * 5000, b"1e" + b"9" * 200):
        with pytest.raises(ApiError, match="at most 100"):
            parsed(b"[" + number + b"]" + padding, LIMITS)


@pytest.mark.parametrize(
    ("value", "n"),
    [
        (0, 1),
        ([1, 2, 3], 4),
        ({"a": [1, {"b": 2}]}, 7),
        (["a, b: [c] {d}", '"', "\\", '\\"', "\\\\", ","], 7),
        ([["x"] * 10] * 10, 120),
    ],
)
def test_values_are_counted_outside_of_texts(value, n):
    assert abs(count_values(json.dumps(value).encode()) - n) <= n // 4


def test_where_a_text_is_cut_does_not_matter(monkeypatch):
    data = json.dumps(['\\"', "\\\\,", 'a"b,c', [1, 2], "\\" * 9, {"k,": '",'}] * 20).encode()
    whole = count_values(data)
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(bodies, "CHUNK_BYTES", size)
        assert count_values(data) == whole


def test_too_many_values_are_refused_before_they_are_read(monkeypatch):
    limits = RequestLimits(values=1000)
    text = json.dumps({"prompt": "1,2:[3{" * 1000}).encode()
    assert parsed(text, limits)["prompt"].startswith("1,2")
    monkeypatch.setattr(bodies.json, "loads", None)
    for body in ([0] * 1001, {str(number): 0 for number in range(600)}, [[]] * 600):
        with pytest.raises(ApiError, match="at most 1,000") as refused:
            parsed(json.dumps(body).encode(), limits)
        assert refused.value.code == "over_limit"


@pytest.mark.parametrize(
    "data", [b"{", b'{"a":}', b"\xff\xfe{}", b"[" * 100_000, b'{"a":"\\ud8"}', b"nul", b"[1" + b" " * 9000]
)
def test_what_is_no_json_is_said(data):
    with pytest.raises(ApiError, match="no JSON") as refused:
        parsed(data, LIMITS)
    assert refused.value.code == "invalid_json"


def test_a_large_body_is_read_in_a_thread(monkeypatch):
    threads = {}

    def reading(data, limits):
        threads[len(data) > bodies.LOOP_BYTES] = threading.current_thread().name
        return parsed(data, limits)

    monkeypatch.setattr(bodies, "parsed", reading)
    with visiting() as (_, web):
        for prompt in ("x", "x" * 40_000):
            web.post("/v1/completions", json={**MODEL, "prompt": prompt, "max_tokens": 1})
    assert threads[True].startswith("stretto-server")
    assert not threads[False].startswith("stretto-server")


REFUSED = {
    "too many fields": lambda: {f"k{number}": 0 for number in range(10 * MAX_FIELDS)},
    "wrong values": lambda: {**MODEL, "prompt": [None] * 10_000},
}


@pytest.mark.parametrize("made", REFUSED.values(), ids=REFUSED)
def test_the_error_of_a_large_body_holds_nothing_of_it(made):
    """Errors wait for the event loop: a hundred of them held 250 MB, which came back in pieces only."""
    data = json.dumps(made()).encode()
    assert len(data) > bodies.LOOP_BYTES

    async def read():
        try:
            await bodies.read_body(CompletionRequest, data, LIMITS)
        except ApiError as error:
            return error.__context__, [frame.name for frame in traceback.extract_tb(error.__traceback__)]

    gc.disable()
    try:
        before = sys.getrefcount(data)
        assert asyncio.run(read()) == (None, ["read", "read_body"])
        bodies.READER.submit(int).result()  # its one thread has let go of what it did before
        assert sys.getrefcount(data) == before  # nothing waits for the garbage collector
    finally:
        gc.enable()


def test_large_bodies_are_read_one_after_the_other(monkeypatch):
    """Not in the threads that encode prompts: there they would be in the way of other requests."""
    real, names, at_work, most = bodies.parsed, set(), [], []

    def reading(data, limits):
        names.add(threading.current_thread().name)
        at_work.append(data)
        most.append(len(at_work))
        time.sleep(0.01)
        at_work.pop()
        return real(data, limits)

    async def read_all():
        data = json.dumps({**MODEL, "prompt": "x" * bodies.LOOP_BYTES}).encode()
        await asyncio.gather(*(bodies.read_body(CompletionRequest, data, LIMITS) for _ in range(8)))

    monkeypatch.setattr(bodies, "parsed", reading)
    asyncio.run(read_all())
    assert (len(names), max(most), len(most)) == (1, 1, 8)


def test_between_large_bodies_others_get_their_turn(monkeypatch):
    """The reader rests for as long as a body took; the first one after a while waits for nothing."""
    clock, slept = [100.0], []

    def sleep(seconds):
        slept.append(round(seconds, 6))
        clock[0] += seconds

    def reading(model, data, limits):
        clock[0] += 0.25
        return data

    fake = SimpleNamespace(sleep=sleep, monotonic=lambda: clock[0], thread_time=lambda: clock[0])
    monkeypatch.setattr(bodies, "time", fake)
    monkeypatch.setattr(bodies, "_read_or_refuse", reading)
    turns = bodies.Turns()
    assert [turns.read(CompletionRequest, data, LIMITS) for data in (b"a", b"b")] == [b"a", b"b"]
    clock[0] += 10
    turns.read(CompletionRequest, b"c", LIMITS)
    assert slept == [0, 0.25, 0]


@pytest.mark.parametrize("size", [0, bodies.CHUNK_BYTES])
def test_digits_are_counted_in_bodies_of_any_size(size):
    padding = b'"' + b"x" * max(size, bodies.SMALL_BYTES) + b'"'
    assert parsed(b"[" + padding + b", 7, 1.5, -2e3]", LIMITS)[1:] == [7, 1.5, -2000.0]
    assert parsed(b"[" + padding + b', "' + b"9" * 500 + b'"]', LIMITS)[1] == "9" * 500
    with pytest.raises(ApiError, match="at most 100"):
        parsed(b"[" + padding + b", " + b"9" * 101 + b"]", LIMITS)


@pytest.mark.parametrize(
    ("value", "longer"),
    [("x" * 50, False), ("x" * 51, True), ([1] * 49, False), ([1] * 51, True), ({"k" * 51: 0}, True),
     ({"a": {"b": ["c" * 40]}}, False), ({"a": {"b": ["c" * 48]}}, True)],
)  # fmt: skip
def test_the_size_of_a_schema_is_known_without_writing_it(value, longer):
    assert is_longer(value, 50) == longer


def test_a_long_answer_is_written_in_pieces(monkeypatch):
    value = {
        "a": list(range(10)),
        "b": [[0.5] * 7, []],
        "c": {"d": "é"},
        "e": [{"f": None}] * 7,
        "g": [],
        "h": [{"i": [1]}, {}],
    }
    monkeypatch.setattr(answers, "PIECE_VALUES", 3)
    assert answers.pieces(value) == dumps(value)
    with visiting() as (_, web):
        found = web.post("/stretto/tokenize", json={**MODEL, "text": "hello"})
    assert found.headers["content-type"] == "application/json"
    assert found.json()["pieces"] == list("hello")


def test_a_body_of_nothing_is_told_what_is_missing():
    with visiting() as (_, web):
        for body in (b"", b"null", b"[]", b"7"):
            answer = web.post("/v1/completions", content=body)
            assert answer.status_code == 400
            assert "a JSON object" in answer.json()["error"]["message"]
        query = web.post("/v1/completions?x=1", json={**MODEL, "prompt": [None] * 100})
        assert query.json()["error"]["param"] == "prompt[0]"
