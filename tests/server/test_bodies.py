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
from stretto import _native
from stretto.server.app import ROUTERS
from stretto.server.generation import answer as answers
from stretto.server.generation.options import is_longer
from stretto.server.generation.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from stretto.server.http import bodies
from stretto.server.http.bodies import MAX_FIELDS, BodyRoute, assemble, find_body_model, parse_json, validate
from stretto.server.http.errors import ApiError, dumps
from stretto.server.http.guard import FORM_PATHS
from stretto.server.own import endpoints
from stretto.server.settings import RequestLimits

LIMITS = RequestLimits()
POSTS = [route for router in ROUTERS for route in router.routes if "POST" in route.methods]
ANY_BYTES, ANY_DEPTH = 1 << 30, 1 << 30  # of a piece: not cut, however deep
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
        (endpoints.TokenizeRequest, {**MODEL, "tokens": [None] * 10_000}),
    ],
)
def test_a_list_fails_at_its_first_wrong_value(model, body):
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    assert refused.value.error_count() < 40
    with pytest.raises(ApiError) as answered:
        validate(model, body)
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
    models = {find_body_model(route.endpoint) for route in POSTS} - {None}
    found = [entry for model in models for entry in lists(model.__pydantic_core_schema__)]
    assert len(found) > 20
    assert all(entry["fail_fast"] for entry in found)


def test_every_endpoint_with_a_body_is_served_here():
    """None is left to FastAPI, whose validation knows no bounds."""
    posts = {route.path: route for route in POSTS}
    assert all(isinstance(route, BodyRoute) for route in POSTS)
    others = {path for path, route in posts.items() if find_body_model(route.endpoint) is None}
    without = {"/v1/responses/{response_id}/cancel", "/v1/batches/{name}/cancel"}
    assert others - without == {*FORM_PATHS, "/slots/{number}", "/api/blobs/{digest}"}  # that read their own
    assert [path for path in others if posts[path].body_field] == []


def test_an_object_has_so_many_fields_and_no_more():
    fields = {f"k{number}": 0 for number in range(MAX_FIELDS)}
    assert parse_json(json.dumps(fields).encode(), LIMITS) == fields
    for body in ({**fields, "one": 1}, [{"deep": {**fields, "one": 1}}]):
        with pytest.raises(ApiError, match="2,049 fields") as refused:
            parse_json(json.dumps(body).encode(), LIMITS)
        assert (refused.value.status, refused.value.code) == (400, "over_limit")


def outline(data):
    """Values, fields of the largest object, characters of the longest number, and whether all of it ends."""
    return _native.json_outline(data, ANY_BYTES, ANY_DEPTH)[:4]


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
    for one in values:
        _, most_fields, _, is_whole = outline(json.dumps(one).encode())
        assert (most_fields, is_whole) == (max(fields_of(one), default=0), True)
    monkeypatch.setattr(bodies.json, "loads", None)
    with pytest.raises(ApiError, match="20,000 fields"):
        parse_json(json.dumps({f"k{number}": 0 for number in range(20_000)}).encode(), LIMITS)


def test_a_number_has_so_many_digits_and_no_more():
    padding = b" " * bodies.SMALL_BYTES
    assert parse_json(b"[12345678901234567890, 1.5e300]" + padding, LIMITS) == [12345678901234567890, 1.5e300]
    for number in (b"9" * 101, b"-" + b"9" * 4000, b"0." + b"9" * 5000, b"1e" + b"9" * 200):
        with pytest.raises(ApiError, match="at most 100"):
            parse_json(b"[" + number + b"]" + padding, LIMITS)


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
    assert abs(outline(json.dumps(value).encode())[0] - n) <= n // 4


@pytest.mark.parametrize(
    "data", [b'"', b'"\\"', b'["a]', b"[", b"]", b"{]", b"[}", b"[[]", b"[]]", b"]]]:{", b"}:{:}:", b"1,2"]
)
def test_brackets_and_quotes_that_do_not_match_are_seen(data):
    assert not outline(data)[3]


@pytest.mark.parametrize(
    ("data", "n"), [(b"", 0), (b"7", 1), (b'["99999", -12.5e+3, 1]', 8), (b"[1,23456", 5)]
)
def test_characters_of_numbers_are_counted_outside_of_texts(data, n):
    assert outline(data)[2] == n


def in_pieces(data, size):
    """The value of a text in pieces of about this size, or "wrong"; and how many there were."""
    *_, is_whole, pieces = _native.json_outline(data, size, ANY_DEPTH)
    pauses = []
    try:
        if not is_whole:
            raise ValueError
        value = assemble(data, pieces, lambda: pauses.append(0)) if pieces else json.loads(data)
    except ValueError:
        value = "wrong"
    return value, len(pauses)


def whole(data):
    try:
        return json.loads(data)
    except ValueError:
        return "wrong"


NESTED = {
    "prompt": [
        1,
        [2, "three, [", {}, []],
        {"a": {"b": [None, True, '\\"']}, "é,": "\u2028"},
        "x" * 50,
        -1.5e3,
    ],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "],}"}]}] * 3,
    "": [[[[[]]]], [], 0],
}


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 8, 13, 40, 100, 1000])
def test_pieces_have_the_value_of_the_whole(size):
    for layout in ({}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}):
        data = json.dumps(NESTED, **layout).encode()
        value, n = in_pieces(data, size)
        assert value == NESTED
        assert list(value) == list(NESTED)
        assert n > 1 or size == 1000
    twice = b'{"a": [1, 2, 3], "b": 0, "a": [4, 5, 6]}'
    assert list(in_pieces(twice, size)[0].items()) == list(json.loads(twice).items())


def test_pieces_are_right_where_the_whole_is():
    """Characters of a text are left out, doubled, exchanged or replaced: it is refused or read as before."""
    rng, seen = random.Random(3), set()
    text = json.dumps(NESTED, indent=1).encode()[:300] + b" ]}"
    texts = [json.dumps(NESTED).encode(), json.dumps(NESTED["prompt"], indent=1).encode(), text]
    for _ in range(4000):
        data = bytearray(rng.choice(texts))
        for _ in range(rng.choice((1, 1, 2))):
            at, other = rng.randrange(len(data)), rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                del data[at]
            elif kind == 1:
                data.insert(at, data[other])
            elif kind == 2:
                data[at], data[other] = data[other], data[at]
            else:
                data[at] = rng.choice(b'[]{},:" 0-n\\x')
        expected = whole(bytes(data))
        seen.add(expected == "wrong")
        for size in (0, 3, 20):
            assert in_pieces(bytes(data), size)[0] == expected
    assert seen == {True, False}


@pytest.mark.parametrize(
    "data",
    [
        b"[%b,]",
        b"[,%b]",
        b"[%b %b]",
        b"[%b,,%b]",
        b"[1 %b]",
        b"[%b 1]",
        b"%b %b",
        b'{"a" %b}',
        b'{"a":1 %b}',
        b"{%b:1}",
        b'{"a":%b,}',
        b'{"a":%b "b":1}',
        b"1 %b",
        b"%b,",
        b'["a":%b]',
        b"{%b}",
    ],
)
def test_a_large_list_stands_where_a_value_may(data):
    large = json.dumps([0] * bodies.PIECE_BYTES).encode()
    with pytest.raises(ApiError, match="no JSON"):
        parse_json(data.replace(b"%b", large), LIMITS)


def test_a_large_body_is_parsed_in_pieces_with_rests():
    """The interpreter's lock is free in between; a parser would keep it until it has all."""
    value = {**MODEL, "prompt": list(range(100_000)), "user": "é"}
    text, pauses = json.dumps(value, ensure_ascii=False), []
    encodings = ("utf-8", "utf-8-sig", "utf-16", "utf-32-le")
    for encoding in encodings:
        assert parse_json(text.encode(encoding), LIMITS, lambda: pauses.append(0)) == value
    assert len(pauses) >= len(encodings) * len(text) // (2 * bodies.PIECE_BYTES)


def test_how_deep_a_large_body_may_be(monkeypatch):
    def nested(depth):
        return b"[" * depth + b"0, " * bodies.PIECE_BYTES + b"0" + b"]" * depth

    value = parse_json(nested(bodies.MAX_DEPTH), LIMITS)
    for _ in range(bodies.MAX_DEPTH - 1):
        (value,) = value
    assert value == [0] * (bodies.PIECE_BYTES + 1)
    monkeypatch.setattr(bodies.json, "loads", None)
    with pytest.raises(ApiError, match="too deep"):
        parse_json(nested(bodies.MAX_DEPTH + 1), LIMITS)
    with pytest.raises(ApiError, match="does not end"):
        parse_json(b'{"prompt": "' + b"x" * 500_000, LIMITS)


def test_too_many_values_are_refused_before_they_are_read(monkeypatch):
    limits = RequestLimits(values=1000)
    text = json.dumps({"prompt": "1,2:[3{" * 1000}).encode()
    assert parse_json(text, limits)["prompt"].startswith("1,2")
    monkeypatch.setattr(bodies.json, "loads", None)
    for body in ([0] * 1001, {str(number): 0 for number in range(600)}, [[]] * 600):
        with pytest.raises(ApiError, match="at most 1,000") as refused:
            parse_json(json.dumps(body).encode(), limits)
        assert refused.value.code == "over_limit"


@pytest.mark.parametrize(
    "data", [b"{", b'{"a":}', b"\xff\xfe{}", b"[" * 100_000, b'{"a":"\\ud8"}', b"nul", b"[1" + b" " * 9000]
)
def test_what_is_no_json_is_said(data):
    with pytest.raises(ApiError, match="no JSON") as refused:
        parse_json(data, LIMITS)
    assert refused.value.code == "invalid_json"


def test_a_large_body_is_read_in_a_thread(monkeypatch):
    threads = {}

    def reading(data, limits, *pause):
        threads[len(data) > bodies.PIECE_BYTES] = threading.current_thread().name
        return parse_json(data, limits, *pause)

    monkeypatch.setattr(bodies, "parse_json", reading)
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
    assert len(data) > bodies.PIECE_BYTES

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
    real, names, at_work, most = bodies.parse_json, set(), [], []

    def reading(data, limits, *pause):
        names.add(threading.current_thread().name)
        at_work.append(data)
        most.append(len(at_work))
        time.sleep(0.01)
        at_work.pop()
        return real(data, limits, *pause)

    async def read_all():
        data = json.dumps({**MODEL, "prompt": "x" * bodies.PIECE_BYTES}).encode()
        await asyncio.gather(*(bodies.read_body(CompletionRequest, data, LIMITS) for _ in range(8)))

    monkeypatch.setattr(bodies, "parse_json", reading)
    asyncio.run(read_all())
    assert (len(names), max(most), len(most)) == (1, 1, 8)


def test_between_large_bodies_others_get_their_turn(monkeypatch):
    """The reader rests for as long as it worked; the first body after a while waits for nothing."""
    clock, slept = [100.0], []

    def sleep(seconds):
        slept.append(round(seconds, 6))
        clock[0] += seconds

    def reading(model, data, limits, pause):
        clock[0] += 0.5
        pause()
        clock[0] += 0.25
        return data

    fake = SimpleNamespace(sleep=sleep, monotonic=lambda: clock[0], thread_time=lambda: clock[0])
    monkeypatch.setattr(bodies, "time", fake)
    monkeypatch.setattr(bodies, "_read_or_refuse", reading)
    turns = bodies.Turns()
    assert [turns.read(CompletionRequest, data, LIMITS) for data in (b"a", b"b")] == [b"a", b"b"]
    clock[0] += 10
    turns.read(CompletionRequest, b"c", LIMITS)
    assert slept == [0, 0.5, 0.25, 0.5, 0, 0.5]


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_digits_are_counted_in_bodies_of_any_size(size):
    padding = b'"' + b"x" * max(size, bodies.SMALL_BYTES) + b'"'
    assert parse_json(b"[" + padding + b", 7, 1.5, -2e3]", LIMITS)[1:] == [7, 1.5, -2000.0]
    assert parse_json(b"[" + padding + b', "' + b"9" * 500 + b'"]', LIMITS)[1] == "9" * 500
    with pytest.raises(ApiError, match="at most 100"):
        parse_json(b"[" + padding + b", " + b"9" * 101 + b"]", LIMITS)


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
