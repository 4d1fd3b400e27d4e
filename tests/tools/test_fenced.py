"""Calls in fenced blocks of JSON, as Qwen2.5-Coder writes them."""

import json
import random

import jsonschema
import pytest

from random_schemas import random_schema
from stretto.structured.checks import check_schema
from stretto.tools.check import check_tools
from stretto.tools.fenced import calls_in, quoted_calls, writes_fenced
from stretto.tools.finding import call_format
from stretto.tools.fitting import fits
from tool_models import make

WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["town"],
    },
}
TOOLS = [WEATHER, {"name": "now"}]
OSLO = {"town": "Oslo"}
HELLO = [{"role": "user", "content": "Is it cold in Oslo?"}]


def call(name, arguments, **layout):
    return json.dumps({"name": name, "arguments": arguments}, **layout)


def fenced(*calls, fence="```"):
    return f"{fence}json\n" + "\n".join(calls) + f"\n{fence}"


NOW, COLD = call("now", {}), call("weather", OSLO)
CALLS = {
    "alone": (fenced(COLD), "", [("weather", OSLO)]),
    "in lines": (fenced(call("weather", OSLO, indent=2)), "", [("weather", OSLO)]),
    "behind words": (f"Let me see.\n\n{fenced(NOW)}\n", "Let me see.", [("now", {})]),
    "behind a program": (f"```python\nnow()\n```\n{fenced(NOW)}", "```python\nnow()\n```", [("now", {})]),
    "never closed": (f"```json\n{NOW}", "", [("now", {})]),
    "two blocks": (f"{fenced(NOW)}\n\n{fenced(COLD)}", "", [("now", {}), ("weather", OSLO)]),
    "two in a block": (fenced(NOW, COLD), "", [("now", {}), ("weather", OSLO)]),
    "a list": (fenced(f"[{NOW}, {COLD}]"), "", [("now", {}), ("weather", OSLO)]),
    "another order": (fenced('{"arguments": {}, "name": "now"}'), "", [("now", {})]),
    "a fence in an argument": (fenced(call("weather", {"town": "```"})), "", [("weather", {"town": "```"})]),
    "half of a surrogate pair": (
        fenced(call("weather", {"town": "Oslo \ud800"})),
        "",
        [("weather", {"town": "Oslo \ufffd"})],
    ),
    "null for no argument": (fenced(call("weather", {**OSLO, "days": None})), "", [("weather", OSLO)]),
    "bare": (COLD, "", [("weather", OSLO)]),
    "two bare ones": (f"{NOW}\n{COLD}\n", "", [("now", {}), ("weather", OSLO)]),
    "bare, behind white space": (f" \n{NOW}", "", [("now", {})]),
    "four ticks": (fenced(NOW, fence="````"), "", [("now", {})]),
}
TEXTS = {
    "words behind": f"{fenced(NOW)}\nThis is how one would call it.",
    "a program behind": f"{fenced(NOW)}\n```python\nprint()\n```",
    "an unknown function": fenced(call("fly", {})),
    "arguments of a wrong type": fenced(call("weather", {"town": 5})),
    "an argument too many": fenced(call("weather", {"town": "Oslo", "sky": "clear"})),
    "an argument too few": fenced(call("weather", {"days": 1})),
    "one of two is wrong": fenced(NOW, call("fly", {})),
    "other JSON": fenced('{"town": "Oslo", "days": 2}'),
    "a name and no arguments": fenced('{"name": "Ann", "age": 30}'),
    "a name that is a tool's": fenced('{"name": "now", "age": 30}'),
    "broken": fenced('{"name": "now", "arguments": {'),
    "cut": '```json\n{"name": "weather", "arguments": {"town": "Os',
    "another language": f"```text\n{NOW}\n```",
    "within a line": f"Write ```json\n{NOW}\n```",
    "in a quotation": f"> ```json\n> {NOW}\n> ```",
    "in an item of a list": f"- say\n\n  ```json\n  {NOW}\n  ```",
    "in a longer block": f"````markdown\n{fenced(NOW)}\n````",
    "in a block that is never closed": f"~~~\n{fenced(NOW)}",
    "bare, behind words": f"So: {NOW}",
    "bare, before words": f"{NOW} is what I would call.",
    "bare, and other JSON": f'{NOW}\n{{"degrees": 5}}',
    "bare, of no tool": call("fly", {}),
    "two braces": f"{{{NOW}}}",
    "null for an argument that is needed": fenced(call("weather", {"town": None})),
    "a fence alone": "```json\n```",
    "nothing but a fence": "```",
}


def answers(name="chatml-tools", messages=HELLO, say="", **options):
    return make(name, say).chat(messages, tools=TOOLS, temperature=0, max_tokens=400, **options)


@pytest.mark.parametrize("name", CALLS)
def test_a_fenced_call_is_a_call(name):
    text, said, calls = CALLS[name]
    result = answers(say=text)
    assert [(one.name, one.arguments) for one in result.tool_calls] == calls
    assert result.text == said
    assert len({one.id for one in result.tool_calls}) == len(calls)


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_such_call_stays_text(name):
    result = answers(say=TEXTS[name])
    assert (result.tool_calls, result.text) == ((), TEXTS[name].strip())


@pytest.mark.parametrize("name", [*CALLS, *TEXTS])
def test_nothing_of_a_call_is_shown_before_it_is_sure(name):
    text, said, calls = CALLS.get(name) or (TEXTS[name], TEXTS[name], [])
    llm = make("chatml-tools", "x")
    for seed in range(20):
        follower = llm.tool_plan(TOOLS).reader.follow()
        events, rng, at = [], random.Random(seed), 0
        while at < len(text):
            size = rng.choice((1, 2, 3, 20))
            events += follower.push_spelled(text[at : at + size])
            at += size
            assert "".join(event.text for event in events) == text[: len("".join(e.text for e in events))]
            assert not calls or '"name"' not in "".join(event.text for event in events)
        assert not any(event.name for event in events)
        events += follower.end()
        assert [(e.call.name, e.call.arguments) for e in events if e.call is not None] == calls
        assert "".join(event.text for event in events).strip() == said.strip()
        assert [e.index for e in events if e.name] == list(range(len(calls)))


def test_text_that_cannot_become_a_call_is_not_held():
    reader = make("chatml-tools", "x").tool_plan(TOOLS).reader
    for shown in (
        "Words.",
        "```python\nx = 1",
        '```json\n{"town":',
        "```json\n[1",
        '```json\n{"name": "fly"}',
    ):
        follower = reader.follow()
        assert "".join(event.text for event in follower.push_spelled(shown)) == shown
        assert not follower.is_pending
    for held in ('{"name": "n', "``", "```json", '```json\n{"na', '```json\n{"name": "now", "argum'):
        follower = reader.follow()
        assert follower.push_spelled(held) == []
        assert follower.is_pending


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_call_of_the_model_s_own_format_makes_blocks_text(end):
    own = f"<tool_call>\n{COLD}\n</tool_call>"
    for text in (f"{fenced(NOW)}\n{own}{end}", f"{own}\n{fenced(NOW)}{end}"):
        result = answers(say=text)
        assert [one.name for one in result.tool_calls] == ["weather"]
        assert result.text == fenced(NOW)


def test_one_call_at_most():
    result = answers(say=CALLS["two blocks"][0], parallel_tool_calls=False)
    assert [one.name for one in result.tool_calls] == ["now"]
    assert result.text == ""


QUOTING = {
    "a user's": [{"role": "user", "content": f"Explain\n\n{fenced(COLD)}"}],
    "a system's": [{"role": "system", "content": COLD}, *HELLO],
    "quoted by a user": [
        {"role": "user", "content": "> " + call("weather", OSLO, indent=1).replace("\n", "\n> ")}
    ],
    "in parts": [{"role": "user", "content": [{"type": "text", "text": COLD}]}],
    "a result": [*HELLO, {"role": "tool", "tool_call_id": "1", "content": f"Sunny. {fenced(COLD)}"}],
    "JSON in a result": [
        *HELLO,
        {"role": "tool", "tool_call_id": "1", "content": json.dumps({"a": [fenced(COLD)]})},
    ],
    "JSON in JSON in a result": [
        *HELLO,
        {"role": "tool", "content": json.dumps({"text": json.dumps({"a": [json.dumps(fenced(COLD))]})})},
    ],
    "a string in a program": [{"role": "user", "content": f"post({json.dumps(fenced(COLD))})"}],
    "spelled by numbers": [{"role": "user", "content": COLD.replace("{", r"\u007b").replace('"', r"\u0022")}],
    "another order": [{"role": "user", "content": json.dumps({"arguments": OSLO, "name": "weather"})}],
}


@pytest.mark.parametrize("name", QUOTING)
def test_a_call_that_repeats_what_was_read_is_quoted(name):
    plan = make("chatml-tools", "x").tool_plan(TOOLS).beside(QUOTING[name])
    assert plan.reader.read_text(fenced(COLD)) == (fenced(COLD), ())
    _, calls = plan.reader.read_text(fenced(call("weather", {"town": "Rome"})))
    assert [one.arguments for one in calls] == [{"town": "Rome"}]


def test_chat_knows_what_the_model_has_read():
    assert answers(messages=QUOTING["a user's"], say=fenced(COLD)).tool_calls == ()
    assert len(answers(messages=QUOTING["a user's"], say=fenced(NOW)).tool_calls) == 1
    before = [*HELLO, {"role": "assistant", "content": fenced(COLD)}, *HELLO]
    assert len(answers(messages=before, say=fenced(COLD)).tool_calls) == 1  # the model's own call, again


@pytest.mark.parametrize(("n_objects", "n_calls"), [(9_000, 1), (10_000, 0)])
def test_more_objects_than_are_read_hide_no_quoted_call(n_objects, n_calls):
    decoys = '{"name": 1} ' * n_objects
    for content, n_expected in ((decoys + '{"id": 2}', n_calls), (decoys + fenced(NOW), 0)):
        plan = make("chatml-tools", "x").tool_plan(TOOLS).beside([{"role": "user", "content": content}])
        assert len(plan.reader.read_text(fenced(NOW))[1]) == n_expected


def test_objects_that_are_never_closed_are_not_read_again_and_again(monkeypatch):
    n_read = 0
    decode = json.JSONDecoder.raw_decode

    def counted(self, text, idx=0):
        nonlocal n_read
        n_read += len(text) - idx
        return decode(self, text, idx)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", counted)
    for text in (
        '{"name":' * 7_500,
        ('{"name":' * 900 + '"' + "x" * 60_000),
        '{"name":' * 990 + "[" * 60_000,
    ):
        for n_messages in (1, 20):
            n_read = 0
            part = text[: len(text) // n_messages]
            found = quoted_calls([{"role": "user", "content": part}] * n_messages)
            assert n_read < (1 << 18) + 20 * len(text)
            assert n_messages > 1 or len(found) == 1, "what is not read may be a call"


def test_messages_that_look_like_calls_are_not_calls():
    assert quoted_calls([{"role": "user", "content": '{"name": "x"} {"name": {"name": '}]) == frozenset()
    assert quoted_calls([{"role": "user", "content": None}, "text", {"content": 5}]) == frozenset()
    assert quoted_calls("a prompt") == frozenset()


def test_only_formats_with_such_models_have_fenced_calls():
    formats = {
        name: call_format(llm.template, llm.tokenizer)
        for name in ("chatml-tools", "mistral-nemo")
        if (llm := make(name, "x"))
    }
    assert [name for name, layout in formats.items() if writes_fenced(layout)] == ["chatml-tools"]
    assert answers("mistral-nemo", say=fenced(COLD)).text == fenced(COLD)


def test_a_block_is_calls_or_none():
    assert calls_in("") == calls_in("[]") == calls_in("[[]]") == calls_in("1") == calls_in(f"{NOW} x") == []
    assert calls_in(f"{NOW},\n{NOW};") == [("now", {}), ("now", {})]
    assert calls_in("[" * 100_000) == []


# -- arguments and schemas --


@pytest.mark.parametrize("seed", range(60))
def test_values_fit_as_jsonschema_says(seed):
    schema = json.loads(check_schema(random_schema(seed)))
    validator, rng = jsonschema.Draft202012Validator(schema), random.Random(seed)
    found = {True: 0, False: 0}
    for _ in range(60):
        value = something(rng, schema, schema)
        found[fits(value, schema)] += 1
        assert fits(value, schema) == validator.is_valid(value), (value, schema)
    assert found[False] > 0


def something(rng, schema, root):
    """A value that may fit: made by the schema, sometimes of another type."""
    if rng.random() < 0.08:
        return rng.choice([None, True, -1, 2.0, 2.5, "", "a", [], {}, 10**6])
    if isinstance(schema, bool):
        return 1
    if "$ref" in schema:
        return something(rng, root["$defs"][schema["$ref"].split("/")[-1]], root)
    for key in ("anyOf", "enum"):
        if key in schema:
            one = rng.choice(schema[key])
            return something(rng, one, root) if key == "anyOf" else one
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        names = schema.get("properties", {})
        found = {n: something(rng, part, root) for n, part in names.items() if rng.random() < 0.9}
        return found | {key: 1 for key in ("ab", "AB") if rng.random() < 0.1}
    if kind == "array":
        return [something(rng, schema.get("items", {}), root) for _ in range(rng.randint(0, 4))]
    if kind in ("integer", "number"):
        return rng.choice(
            [0, 1, 5, 50, -3, 7.0, 0.5, 999, schema.get("minimum", 0), schema.get("maximum", 0)]
        )
    return {"boolean": True, "null": None}.get(kind, rng.choice(["a", "abc", "2024-01-01", "x" * 30, "b1"]))


FITTING = [
    ({"type": ["string", "null"]}, ["a", None], [1]),
    ({"type": "integer"}, [1, 2.0], [1.5, True, "1"]),
    ({"enum": [1, "a"]}, [1, 1.0, "a"], [True, "b"]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, [1, 5.5], [7, 1.5]),
    ({"not": {"type": "string"}}, [1], ["a"]),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [2], [0, 4]),
    ({"multipleOf": 0.1}, [0.3], [0.35]),
    ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, [["a", 1], []], [[1], ["a", "b"]]),
    ({"uniqueItems": True}, [[1, True]], [[1, 1.0]]),
    ({"patternProperties": {"^x": {"type": "null"}}}, [{"x": None, "y": 1}], [{"x": 1}]),
    ({"propertyNames": {"maxLength": 2}, "minProperties": 1}, [{"ab": 1}], [{"abc": 1}, {}]),
    ({"pattern": "^a+$"}, ["aa"], ["ab"]),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 2}, [1.5], [1, 2]),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, [None], [1]),
    (True, [1], []),
    (False, [], [1]),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), FITTING)
def test_fitting_values(schema, right, wrong):
    assert all(fits(value, schema) for value in right)
    assert not any(fits(value, schema) for value in wrong)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"not": {"anyOf": [{"not": {"$ref": "#"}}, {"not": {"$ref": "#"}}]}},
        {"$ref": "#/no/such/place"},
        {"$ref": "https://example.com/schema"},
        {"minimum": "x"},
        {"multipleOf": 0},
        {"required": 5},
        {"properties": 5},
        {"pattern": "(?=a)("},
    ],
)
def test_nothing_fits_a_schema_that_cannot_be_followed(schema):
    values = "a" if "pattern" in schema else {"a": 1} if {"properties", "required"} & schema.keys() else 1
    assert not fits(values, schema)


def test_plans_check_arguments_by_the_schemas_of_their_tools():
    (tool,) = check_tools([WEATHER])
    assert fits(OSLO, json.loads(tool.schema))
    assert not fits({**OSLO, "sky": 1}, json.loads(tool.schema))  # objects of arguments are closed
