"""Grammars that are wrong, or too much: each raises `InvalidRequest` that says why, and harms nobody."""

import json
import subprocess
import sys
import threading
import time

import pytest

from stretto import Grammar, GrammarsBusy, InvalidGrammar, InvalidRequest
from stretto.structured import Compiler, as_grammar, compiler, guide, workers
from stretto.structured.checks import MAX_CHARACTERS, MAX_DEPTH, MAX_LARK_CHARACTERS
from stretto.testing import byte_tokenizer, mock_llm


@pytest.fixture(scope="module")
def compile_():
    tokenizer = byte_tokenizer()
    return Compiler(tokenizer, tokenizer.n_vocab).compile


def nested(depth):
    return '{"properties":{"a":' * depth + "true" + "}}" * depth


def deep_dict(depth):
    schema = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
WRONG_SCHEMAS = {
    "not a schema": (5, "must be a dict"),
    "no JSON": ("{nonsense", "no JSON"),
    "nothing fits": (False, "nothing fits"),
    "no JSON value": ({"enum": [object()]}, "cannot be written"),
    "not a number": ({"minimum": float("nan")}, "cannot be written"),
    "a key": ({"properties": {3: {}}}, "at #/properties"),
    "a wrong type": ({"type": "strnig"}, "strnig"),
    "an unknown keyword": ({"properties": {"a": {"$dynamicRef": "#a"}}}, "#/properties/a/"),
    "conditions": ({"if": {"multipleOf": 3}, "then": {"minimum": 1}}, "#/if/multipleOf"),
    "a remote reference": ({"items": {"$ref": "https://example.com/x.json"}}, "#/items/\\$ref"),
    "a file": ({"$ref": "file:///etc/passwd"}, "nothing is fetched"),
    "a missing definition": ({"$ref": "#/$defs/nowhere"}, "nowhere"),
    "a loop of references": (LOOP, "no text fits"),
    "itself": ({"$ref": "#"}, "no text fits"),
    "an empty range": ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
    "two types at once": ({"allOf": [{"type": "string"}, {"type": "null"}]}, "Unsatisfiable|no text fits"),
    "settings in the schema": ({"x-guidance": {"lenient": True}}, "x-guidance"),
    "deep brackets": (nested(60), f"deeper than {MAX_DEPTH}"),
    "very deep brackets": (nested(8000), f"deeper than {MAX_DEPTH}"),
    "a deep dict": (deep_dict(5000), f"deeper than {MAX_DEPTH}"),
    "a huge enum": ({"enum": [f"value {i}" for i in range(10**5)]}, f"may have {MAX_CHARACTERS}"),
    "a huge constant": ({"const": "x" * 10**7}, f"may have {MAX_CHARACTERS}"),
    "a product of choices": (
        {"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(8)]} for i in range(8)]},
        "too large|cannot be used",
    ),
    "thousands of options": (
        {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}, "additionalProperties": False},
        "max is|too big|too large",
    ),
    "a large multiple": ({"type": "integer", "multipleOf": 999999937}, "fuel|too"),
    "many patterns at once": (
        {"allOf": [{"pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(40)]},
        "40 patterns for one text",
    ),
    "many patterns by way of definitions": (
        {
            "allOf": [{"properties": {"a": {"$ref": f"#/$defs/d{i}"}}} for i in range(9)],
            "$defs": {f"d{i}": {"allOf": [{"pattern": "a.b"}, {"pattern": "c"}]} for i in range(9)},
        },
        "18 patterns for one text",
    ),
    "patterns behind a long chain": (
        {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{i}": {"pattern": "a", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(2000)},
        },
        "too long a chain",
    ),
    "surrogates": ({"const": "\ud800"}, "surrogate"),
}


@pytest.mark.parametrize("name", WRONG_SCHEMAS)
def test_wrong_schemas(compile_, name):
    schema, message = WRONG_SCHEMAS[name]
    with pytest.raises(InvalidRequest, match=message):
        compile_(Grammar.json(schema))


def test_a_schema_that_holds_itself(compile_):
    schema = {"properties": {}}
    schema["properties"]["again"] = schema
    with pytest.raises(InvalidRequest, match="deeper"):
        Grammar.json(schema)


WRONG_TEXTS = {
    "open bracket": (Grammar.regex, "(a", "unclosed"),
    "look-ahead": (Grammar.regex, "(?=a)b", "look-around"),
    "back-reference": (Grammar.regex, r"(a)\1", "backreferences"),
    "deep brackets": (Grammar.regex, "(" * 20000 + "a" + ")" * 20000, "cannot be used"),
    "a long expression": (Grammar.regex, "ab?" * 10**5, f"may have {MAX_CHARACTERS}"),
    "no text": (Grammar.regex, b"a", "must be a text"),
    "an empty text": (Grammar.regex, "", "empty"),
    "a million letters": (Grammar.regex, "a{1000000}", "too many"),
    "syntax": (Grammar.lark, 'start ::= "a"', "Expected"),
    "an unknown rule": (Grammar.lark, "start: nowhere", "nowhere"),
    "no start": (Grammar.lark, 'begin: "a"', "start"),
    "deep lark": (Grammar.lark, "start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
    "a rule that never ends": (Grammar.lark, "start: a\na: b\nb: a", "no text fits"),
    "doubling": (
        Grammar.lark,
        "start: T0\n" + "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(30)) + '\nT30: "b"',
        "too big",
    ),
    "a million rules": (Grammar.lark, 'start: ("a" "b"){1000000}', "too many|Too many"),
    "a large grammar": (Grammar.lark, "start: a\n" * 10**4, f"may have {MAX_LARK_CHARACTERS}"),
    "a temperature": (Grammar.lark, 'start[temperature=0.5]: "a"', "temperature"),
    "many intersections": (
        Grammar.lark,
        "start: T\nT: " + " & ".join(f"/(.|\\n)*a.{{{i}}}b(.|\\n)*/" for i in range(40)),
        "39 patterns for one text",
    ),
    "many patterns in a schema": (
        Grammar.lark,
        "start: %json " + json.dumps({"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(40)]}),
        "40 patterns for one text",
    ),
    "intersections": (
        Grammar.lark,
        "start: T\nT: " + " & ".join(f"/(.|\\n)*a.{{{i}}}b(.|\\n)*/" for i in range(2, 12)),
        "fuel|too",
    ),
}


@pytest.mark.parametrize("name", WRONG_TEXTS)
def test_wrong_texts(compile_, name):
    make, text, message = WRONG_TEXTS[name]
    with pytest.raises(InvalidRequest, match=message):
        compile_(make(text))


@pytest.mark.parametrize("choices", ["yes", [], [""], ["a", 3], None, {"a": 1}, ["x" * MAX_CHARACTERS]])
def test_wrong_choices(choices):
    with pytest.raises(InvalidRequest, match="choices"):
        Grammar.choices(choices)


def test_patterns_of_branches_do_not_add_up(compile_):
    branches = [{"properties": {"a": {"pattern": f"^{i}$"}, "b": {"pattern": "x"}}} for i in range(20)]
    assert compile_(Grammar.json({"type": "object", "anyOf": branches}))
    assert compile_(Grammar.lark('start: A\nA: /a&b/ "&&&&&&&&&&&&&"'))


CATASTROPHES = {  # and whether 32 times the letter a fits
    "(a+)+": True,
    "(a|aa)+": True,
    "(a*)*b": False,
    "(.*a){12}": True,
    ".*a.{200}b": False,
    r"(\w{50}\W){50}": False,
}


@pytest.mark.parametrize("pattern", CATASTROPHES)
def test_catastrophic_expressions_are_so_for_others(compile_, pattern):
    """No backtracking: what takes other engines for ever takes this one a moment."""
    found = compile_(Grammar.regex(pattern)).guide()
    for byte in b"a" * 32:
        assert byte in found.allowed()
        found.push(byte)
    assert found.accepting == CATASTROPHES[pattern]


def test_what_grows_too_large_on_the_way_ends_there(compile_):
    found = compile_(Grammar.regex("((a{1,100}){1,100}){1,100}")).guide()

    def write():
        for byte in b"a" * 100:
            assert byte in found.allowed()
            found.push(byte)

    with pytest.raises(InvalidRequest, match=r"the grammar cannot continue: .*too many"):
        write()


CHAINS = r"""
import json, sys
from stretto import Grammar, GrammarsBusy, InvalidGrammar, InvalidRequest
from stretto.structured import Compiler
from stretto.structured.checks import MAX_LARK_CHARACTERS, MAX_CHARACTERS
from stretto.testing import byte_tokenizer

tokenizer = byte_tokenizer()
compiler = Compiler(tokenizer, tokenizer.n_vocab)

def schema(piece):
    n = MAX_CHARACTERS // (len(json.dumps(piece)) + 20)
    text = json.dumps(piece)
    defs = {f"d{i}": json.loads(text.replace("NEXT", f"#/$defs/d{i + 1}")) for i in range(n)}
    return Grammar.json({"$ref": "#/$defs/d0", "$defs": {**defs, f"d{n}": {"type": "null"}}})

def lark(line, last):
    n = MAX_LARK_CHARACTERS // (len(line) + 8) - 2
    lines = [line.replace("THIS", str(i)).replace("NEXT", str(i + 1)) for i in range(n)]
    return Grammar.lark("\n".join([*lines, last.replace("THIS", str(n))]))

ref = {"$ref": "NEXT"}
deep = ref
for _ in range(40):
    deep = {"oneOf": [deep]}
for make in (
    lambda: schema({"items": ref}),
    lambda: schema({"properties": {"a": ref}, "required": ["a"]}),
    lambda: schema({"allOf": [ref], "type": "null"}),
    lambda: schema({"anyOf": [{"type": "string"}, {"additionalProperties": ref}]}),
    lambda: schema(deep),
    lambda: lark('aTHIS: "x" aNEXT', 'aTHIS: "y"\nstart: a0'),
    lambda: lark("aTHIS: " + "(" * 25 + "aNEXT" + ")" * 25, 'aTHIS: "y"\nstart: a0'),
    lambda: lark("ATHIS: " + "(" * 25 + "ANEXT" + ")?" * 25, 'ATHIS: "y"\nstart: A0'),
):
    try:
        compiler.compile(make()).guide().begin()
        print("compiled")
    except InvalidRequest as error:
        print("refused:", str(error)[:60])
"""


def test_long_chains_of_definitions_do_not_end_the_process():
    """The compiler recurses along them; a stack that is too small would be a crash."""
    ran = subprocess.run([sys.executable, "-c", CHAINS], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-500:]
    assert len(ran.stdout.splitlines()) == 8
    assert "compiled" in ran.stdout


def spin(started=None):
    """Work that ends only when its budget does."""
    if started is not None:
        started.set()
    while True:
        workers.check_budget()


def test_processor_time_is_limited_and_not_the_clock(monkeypatch):
    monkeypatch.setattr(workers, "MAX_CPU_SECONDS", 0.02)
    mine = workers.Workers()
    assert mine.run(lambda: time.sleep(0.1) or workers.check_budget() or "slept") == "slept"
    with pytest.raises(InvalidGrammar, match=r"more than 0\.02 s of processor time"):
        mine.run(spin)
    with pytest.raises(KeyError):
        mine.run(lambda: {}["missing"])


def test_one_caller_leaves_threads_to_others():
    """However many slow grammars one caller has, that of another is compiled at once."""
    mine = workers.Workers(2)
    started = threading.Event()
    slow = [mine.submit(lambda: spin(started), "one") for _ in range(10)]
    assert started.wait(30)
    assert mine.submit(lambda: "compiled", "two").result(30) == "compiled"
    assert sum(job.running() for job in slow) == 1
    for job in slow:
        job.cancel()


def test_callers_take_turns():
    mine, gate, order = workers.Workers(1), threading.Event(), []
    jobs = [mine.submit(gate.wait, "one")]
    for caller in ("one", "one", "two", "three"):
        jobs.append(mine.submit(lambda caller=caller: order.append(caller), caller))
    gate.set()
    for job in jobs:
        job.result(30)
    assert order == ["two", "three", "one", "one"] or order == ["one", "two", "three", "one"]


def test_abandoned_work_stops():
    mine, started = workers.Workers(2), threading.Event()
    job, waiting = mine.submit(lambda: spin(started)), mine.submit(lambda: "not wanted")
    assert started.wait(30)
    assert waiting.cancel()
    job.cancel()
    with pytest.raises(InvalidGrammar):
        job.result(30)
    assert mine.run(lambda: 1) == 1


def test_a_caller_with_too_many_grammars_is_told_to_try_again():
    mine, gate = workers.Workers(2), threading.Event()
    jobs = [mine.submit(gate.wait, "one") for _ in range(workers.MAX_WAITING + 1)]
    with pytest.raises(GrammarsBusy, match="of this caller") as caught:
        mine.submit(lambda: 1, "one")
    assert caught.value.n_waiting == workers.MAX_WAITING
    assert mine.submit(lambda: 1, "two").result(30) == 1
    jobs.pop().cancel()
    jobs.append(mine.submit(lambda: 1, "one"))
    gate.set()
    assert [bool(job.result(30)) for job in jobs] == [True] * len(jobs)


SLOW = {  # rewritten in several ways, none of which the parser takes
    "type": "string",
    "allOf": [
        {"pattern": "^([a-z][0-9])+$"},
        {"pattern": "^((c1d3g3).{4,8}){6,6}"},
        {"pattern": "(t|8){10,10}$"},
    ],
    "minLength": 1000,
}


def test_a_slow_schema_is_refused_once_and_remembered(monkeypatch):
    monkeypatch.setattr(workers, "MAX_CPU_SECONDS", 0.05)
    tokenizer = byte_tokenizer()
    mine, jobs = Compiler(tokenizer, tokenizer.n_vocab), []
    for _ in range(3):
        with pytest.raises(InvalidGrammar, match="of processor time"):
            mine.compile(Grammar.of_schema(SLOW))
        monkeypatch.setattr(workers.Job, "work", lambda job: jobs.append(job))  # nothing is compiled again
    assert jobs == []


def test_a_grammar_that_is_slow_to_step_ends_its_own_request(monkeypatch):
    llm = mock_llm("aaaaaaaa")
    other = llm.stream("x", temperature=0)
    stream = llm.stream("x", grammar=Grammar.regex("[ab]{4}"))
    monkeypatch.setattr(guide, "MAX_STEP_SECONDS", -1.0)
    with pytest.raises(InvalidRequest, match="for one token"):
        _ = stream.result
    assert other.result.text == "aaaaaaaa"


def test_a_grammar_is_not_blamed_for_a_busy_machine(compile_, monkeypatch):
    """A step that waits for the processor has not worked."""
    monkeypatch.setattr(guide, "MAX_STEP_SECONDS", 0.1)
    monkeypatch.setattr(guide.Guide, "_differ", lambda self, tokens: time.sleep(0.2) or True)
    state = compile_(Grammar.regex("[ab]{4}")).guide()
    assert state.push(ord("a")) == []


def test_a_refused_grammar_leaves_nothing_behind():
    llm = mock_llm("ok")
    for schema, _ in list(WRONG_SCHEMAS.values())[:12]:
        if isinstance(schema, dict):
            with pytest.raises(InvalidRequest):
                llm.generate("x", grammar=schema)
    assert llm.metrics.added == 0
    assert llm.generate("x", temperature=0).text == "ok"
    assert threading.stack_size() == 0


def test_grammars_are_compiled_once_and_the_oldest_go(monkeypatch):
    tokenizer = byte_tokenizer()
    mine = Compiler(tokenizer, tokenizer.n_vocab)
    first = mine.compile(Grammar.json({"type": "integer"}))
    assert mine.compile(Grammar.json({"type": "integer"})) is first
    assert mine.compile(Grammar.json('{"type": "integer"}')) is first
    assert mine.compile(Grammar.json({"type": "integer"}, whitespace="compact")) is not first
    monkeypatch.setattr(compiler, "MAX_CACHED_GRAMMARS", 3)
    for i in range(3):
        mine.compile(Grammar.regex(f"a{{{i + 1}}}"))
        mine.compile(Grammar.regex("a"))
    assert len(mine.cache) == 3
    assert mine.compile(Grammar.json({"type": "integer"})) is not first


def test_threads_may_share_a_compiler():
    tokenizer = byte_tokenizer()
    mine = Compiler(tokenizer, tokenizer.n_vocab)
    found, errors = [], []

    def work(i):
        try:
            for j in range(10):
                schema = {"enum": [f"{(i + j) % 7}", "x"]}
                guide = mine.compile(Grammar.json(schema)).guide()
                guide.begin()
                found.append(len(guide.allowed()))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert found == [2] * 60


def test_property_order_is_part_of_a_grammar():
    one, other = {"a": True, "b": True}, {"b": True, "a": True}
    assert Grammar.json({"properties": one}) != Grammar.json({"properties": other})


def test_classes_with_a_schema():
    class Model:
        @staticmethod
        def model_json_schema():
            return {"type": "boolean"}

    assert json.loads(Grammar.json(Model).text) == {"type": "boolean"}
    assert as_grammar(Model) == Grammar.json({"type": "boolean"})
    assert repr(Grammar.choices(["a"])) == "Grammar.choices('[\"a\"]')"
