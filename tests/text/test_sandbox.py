"""Hostile templates: each one raises, soon, and does nothing else."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stretto.errors import InvalidRequest, ModelError
from stretto.text.guards import Budget
from stretto.text.intake import Intake
from stretto.text.sandbox import MAX_SOURCE_CHARACTERS, Program

DATA = {
    "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi <b> ä"}],
    "numbers": [3, 1, 2],
    "none": None,
}


def run(source: str, **data: Any) -> str:
    return Program(source).render({**DATA, **data}, Budget())


def doubled(step: str, start: str = "'ab'", times: int = 60) -> str:
    return (
        f"{{% set ns = namespace(x={start}) %}}{{% for i in range({times}) %}}"
        f"{{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x is defined }}}}"
    )


ATTRIBUTES = [
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ messages[0].__init__.__globals__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ messages|map(attribute='role.__class__')|list }}",
    "{{ messages|selectattr('__class__')|list }}",
    "{{ messages|sort(attribute='__class__') }}",
    "{{ ['']|map('attr', '__class__')|list }}",
    "{{ self._TemplateReference__context }}",
    "{{ self }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ joiner() }}",
    "{{ cycler('a') }}",
    "{{ lipsum() }}",
    "{{ lipsum.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.run }}",
    "{{ range.__self__ }}",
    "{{ range }}",
    "{{ ''.upper }}",
    "{{ [''.upper] }}",
    "{{ ''.upper.run }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{0[0]}'.format('abc') }}",
    "{{ '{:>99999999}'.format('') }}",
    "{{ '{!r}'.format('') }}",
    "{{ ''.format_map({}) }}",
    "{{ ''.encode() }}",
    "{{ 'a'.center(5) }}",
    "{{ 'a'.ljust(999999999999) }}",
    "{{ 'a'.zfill(9) }}",
    "{{ 'a'.translate({}) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%999999999s'|format('a') }}",
    "{{ '%(a)s' % {'a': 1} }}",
    "{{ '%r' % range }}",
    "{{ '%s' % range }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(a=1) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages[0].clear() }}",
    "{{ (1).real }}",
    "{{ (1).to_bytes(9) }}",
    "{{ none.__class__ }}",
    "{{ loop.__class__ }}{% for x in [1] %}{{ loop._iterator }}{% endfor %}",
    "{% for x in [1] %}{{ loop }}{% endfor %}",
    "{% for x in [1] %}{{ loop.__init__ }}{% endfor %}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m._func }}",
    "{% macro m() %}{% endmacro %}{{ m }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, a=2) }}",
    "{% call range(3) %}{% endcall %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% call dict() %}{{ m() }}{% endcall %}",
    "{{ namespace().__class__ }}",
    "{{ namespace(__class__=1) }}",
    "{{ namespace(_x=1) }}",
    "{{ namespace(a=1) }}",
    "{% set ns = namespace() %}{{ ns._Namespace__attrs }}",
    "{{ dict.fromkeys('a') }}",
    "{{ dict }}",
    "{{ open('/etc/passwd') }}",
    "{{ eval('1') }}",
    "{{ messages() }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ strftime_now('%Y' * 100) }}",
]
STATEMENTS = [
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% from 'x' import y %}",
    "{% extends 'x' %}",
    "{% block a %}{% endblock %}",
    "{% autoescape true %}{% endautoescape %}",
    "{% do x %}",
    "{% debug %}",
    "{% trans %}{% endtrans %}",
    "{{ x|unknown }}",
    "{{ x is unknown }}",
    "{% for",
    "{{ 'a",
    "{# a",
    "{% if x %}",
    "{% endfor %}",
    "{{ }}",
    "\ud800{{",
]
BOMBS = [
    "{% for a in range(10**9) %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ a == b }}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}" * 8 + "x" + "{% endfor %}" * 8,
    "{% for a in range(99999) %}" + "{% set x = a %}" * 5000 + "{% endfor %}",
    "{{ range(99999)|map('string')|map('length')|sum }}{{ range(99999)|list|string * 99 }}",
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [1] * 10**9 }}",
    "{{ 10**10**10 }}",
    "{{ 2**64 * 2 }}",
    "{{ 1 + " + "9" * 100 + " }}",
    "{{ " + "9" * 5000 + " }}",
    "{{ 0x" + "f" * 5000 + " }}",
    "{{ ('9' * 70)|int }}",
    "{{ 1|round(10**9) }}",
    "{{ '%1000000000d' is odd }}",
    "{{ '%1000000000d' is divisibleby(3) }}",
    doubled("ns.x + ns.x"),
    doubled("ns.x ~ ns.x"),
    doubled("ns.x * 2"),
    doubled("ns.x.replace('a', ns.x)"),
    doubled("ns.x|replace('', ns.x)"),
    doubled("ns.x.join([ns.x, ns.x])"),
    doubled("[ns.x, ns.x]|join(ns.x)"),
    doubled("'{0}{0}'.format(ns.x)"),
    doubled("'%s%s' % (ns.x, ns.x)"),
    doubled("[ns.x, ns.x]|sum(start='')"),
    doubled("[ns.x, ns.x]|sum(start=[])", "[1]"),
    doubled("[ns.x, ns.x]"),
    doubled("(ns.x, ns.x)"),
    doubled("{'a': ns.x, 'b': ns.x}"),
    doubled("dict(a=ns.x, b=ns.x)"),
    doubled("[ns.x, ns.x]|list"),
    doubled("ns.x + ns.x", "[1]"),
    doubled("[ns.x, ns.x]|tojson"),
    doubled("[ns.x, ns.x]|string"),
    doubled("ns.x * ns.x", "3"),
    doubled("[ns.x]", times=5000),
    doubled("(ns.x,)", times=5000),
    doubled("ns.x|tojson", "'\"'"),
    doubled("ns.x|indent(32, true)", "'\\n\\n'", 99999),
    doubled("ns.x|title|upper + ns.x"),
    "{% set x %}" + doubled("ns.x + ns.x", times=18) + "{% endset %}{% set s = 'a' * 900000 %}"
    "{% set y %}{% for i in range(9999) %}{{ s }}{% endfor %}{% endset %}",
    "{% set y %}{% for i in range(99999) %}" + "data" * 1000 + "{% endfor %}{% endset %}",
    "{% macro m() %}{% for i in range(99999) %}" + "data" * 1000 + "{% endfor %}{% endmacro %}{{ m() }}",
    "{% filter upper %}{% for i in range(99999) %}" + "data" * 1000 + "{% endfor %}{% endfilter %}",
    "{% for i in range(99999) %}" + "data" * 1000 + "{% endfor %}",
    "{% set s = 'a' * 900000 %}" + "".join(f"{{% set x{i} = s + '{i}' %}}" for i in range(400)),
    "{% set s = 'a' * 900000 %}" + "".join(f"{{% set x{i} = s[{i}:] %}}" for i in range(400)),
    "{% set s = 'a' * 900000 %}" + "".join(f"{{% set x{i} = s.split('a') %}}" for i in range(400)),
    "{{ range(99999)|list|tojson(indent=9999999) }}",
    "{{ [1]|tojson(separators=('x' * 900000, 'y' * 900000)) }}{{ ['a'] * 900000 }}",
    "{{ 'a\n'|indent(10**9) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 500 + "]" * 500 + " }}",
    "{{ " + "not " * 5000 + "1 }}",
    "{{ " + "-" * 5000 + "1 }}",
    "{{ " + "1+" * 5000 + "1 }}",
    "{{ x" + ".a" * 5000 + " }}",
    "{{ x" + "|list" * 5000 + " }}",
    "{% if 1 %}" * 300 + "{% endif %}" * 300,
    "{% for a in [1] %}" * 50 + "{% endfor %}" * 50,
    "{{a}}" * 30000,
    "x" * (MAX_SOURCE_CHARACTERS + 1),
    "{% set ns = namespace() %}{% set ns.a = ns %}{{ [ns] }}",
    "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "{{ messages|map('~each')|list }}",
]


@pytest.mark.parametrize("source", ATTRIBUTES)
def test_attribute_tricks(source: str) -> None:
    with pytest.raises(ModelError) as caught:
        run(source)
    assert caught.value.field == "tokenizer.chat_template"


@pytest.mark.parametrize("source", STATEMENTS)
def test_what_is_no_chat_template(source: str) -> None:
    with pytest.raises(ModelError):
        run(source)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("source", BOMBS, ids=range(len(BOMBS)))
def test_bombs(source: str) -> None:
    begin = time.process_time()
    with pytest.raises(ModelError) as caught:
        run(source)
    assert time.process_time() - begin < 20
    assert len(str(caught.value)) < 1000


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    tracemalloc.start()
    try:
        for source in BOMBS[-24:-18]:
            with pytest.raises(ModelError):
                run(source)
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()


def test_a_name_that_is_missing_is_named() -> None:
    for source, name in {
        "{{ ''.zfill(1) }}": "zfill",
        "{{ open('x') }}": "open",
        "{{ x|nope }}": "nope",
    }.items():
        with pytest.raises(ModelError, match=name):
            run(source)


def test_the_callers_data_is_not_changed() -> None:
    data = {"messages": [{"role": "user"}]}
    for source in (
        "{{ messages.append(1) }}",
        "{% set messages = messages + [1] %}{{ messages[0].pop('role') }}",
    ):
        with pytest.raises(ModelError):
            run(source, **data)
    assert data == {"messages": [{"role": "user"}]}


def test_errors_in_the_data_are_the_requests() -> None:
    for source in (
        "{{ none + 'a' }}",
        "{{ nowhere.x }}",
        "{{ nowhere[0] }}",
        "{% for x in none %}{% endfor %}",
        "{{ 1 / 0 }}",
    ):
        with pytest.raises(InvalidRequest):
            run(source)


SAME = [
    "{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{{ m.role }}{% endfor %}",
    "{% for m in messages %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.content }}{% else %}none{% endfor %}",
    "{% for n in numbers %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% break %}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k ~ '=' ~ v }};{% endfor %}{{ messages[0]|dictsort }}",
    "{{ messages[::-1] }}{{ messages[1:][0].role[1:3] }}{{ messages[-1]['content'][::-1] }}{{ messages[9] }}",
    "{{ numbers|sort }}{{ numbers|max }}{{ numbers|min }}{{ numbers|first }}{{ numbers|last }}",
    "{{ numbers|map('string')|join('-') }}{{ numbers|join }}{{ messages|join('/', attribute='role') }}",
    (
        "{{ messages|map(attribute='role')|unique|list }}"
        "{{ messages|selectattr('role', 'equalto', 'user')|list }}"
    ),
    (
        "{{ numbers|select('gt', 1)|list }}{{ numbers|reject('odd')|list }}"
        "{{ messages|rejectattr('x')|list|length }}{{ none|select|list }}"
    ),
    (
        "{{ 1 < 2 < 3 }}{{ 1 in numbers }}{{ 'x' not in numbers }}{{ 1 <= 1 != 2 }}{{ 'a' < 'b' }}"
        "{{ none == 0 }}"
    ),
    (
        "{{ 1 + 2 * 3 - 4 // 3 % 5 }}{{ 7 / 2 }}{{ 2 ** 10 }}{{ -3 }}{{ 'ab' * 3 }}{{ [1] + [2] }}"
        "{{ 3.5|round|int }}"
    ),
    (
        "{{ none is none }}{{ x is defined }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}"
        "{{ 1 is true }}"
    ),
    (
        "{{ x|default('d') }}{{ ''|default('e', true) }}{{ x }}{{ none }}{{ true }}{{ 1.5 }}"
        "{{ (1, 'a') }}{{ {'a': 1} }}"
    ),
    "{{ ' a b '.strip().split(' ') }}{{ 'aXbX'.replace('X', 'y', 1) }}{{ 'A'.lower() }}{{ 'ab'.index('b') }}",
    (
        "{{ 'a'.startswith(('x', 'a')) }}{{ 'a,b'.partition(',') }}{{ ','.join(['a', 'b']) }}"
        "{{ '{}{a}{{'.format(1, a=2) }}"
    ),
    (
        "{{ 'hello world'|title }}{{ 'a'|upper }}{{ ' a '|trim }}{{ 'xax'|trim('x') }}"
        "{{ 'a\nb'|indent(2, true) }}"
    ),
    (
        "{{ '12'|int + 1 }}{{ 'x'|int(7) }}{{ '1.5'|float }}{{ 'abc'|reverse }}{{ 'abc'|list }}"
        "{{ 'abc'|length }}"
    ),
    (
        "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}"
        "{{ ns.n }}{{ ns.x }}"
    ),
    "{{ '%s is %d%%' % ('a', 3) }}{{ '%s' % none }}{{ '%s-%s'|format(1, 'b') }}{{ numbers|sum }}",
    (
        "{% for m in messages %}{{ loop.cycle('a', 'b', 'c') }}{{ loop.changed(m.role) }}{% endfor %}"
        "{{ range is callable }}{{ 1 is callable }}{{ 'tojson' is filter }}{{ 'defined' is test }}"
    ),
    "{% macro m(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) + m('x', b=2) }}",
    (
        "{% set x %}a{{ 1 }}b{% endset %}{{ x }}{% with y = 2 %}{{ y }}"
        "{% endwith %}{% filter upper %}z{% endfilter %}"
    ),
    (
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}{{ 'y' if a == b else 'n' }}{{ 'y' if false }}"
        "{{ dict(a=1).get('b', 3) }}"
    ),
    (
        "{{ messages[0].get('role') }}{{ messages[0]['items']() | list }}{{ messages[0].keys()|list }}"
        "{{ 'role' in messages[0] }}"
    ),
    "{{ none[0] }}{{ none.a }}{{ none['a'] }}{{ 1[0] }}{{ messages['x'] }}{{ messages.x }}{{ 'a'[5] }}",
    "  {% if true %}\n  a\n  {%- endif %}\n\n{{ 'x' }}\n",
    "{% macro m(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) m(3) %}{{ y }}{{ numbers[0] }}{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}",
    "{{ 'one two three four'|truncate(9) }}|{{ 'one two'|truncate(3) }}",
    "{{ 'abcdefgh ij'|truncate(5, true, '', 0) }}",
    "{{ 'one two, three'|wordcount }}{{ 'a' is escaped }}{{ 1 is escaped }}",
]


@pytest.mark.parametrize("source", SAME, ids=range(len(SAME)))
def test_ordinary_templates_render_as_in_jinja(source: str) -> None:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    assert run(source) == environment.from_string(source).render(**DATA)


def test_lists_of_the_template_can_be_changed() -> None:
    grown = "{% set x = [] %}{% for i in range(5) %}{% set _ = x.append(i) %}{% endfor %}{{ x }}"
    assert run(grown) == "[0, 1, 2, 3, 4]"
    assert run("{% set x = [1, 2, 3] %}{{ x.pop() }}{{ x.pop(0) }}{{ x }}{{ x|length }}") == "31[2]1"
    assert run(
        "{% set ns = namespace(x=[]) %}{{ ns.x.append('a') }}{{ ns.x.append(ns.x[0]) }}{{ ns.x }}"
    ) == ("NoneNone['a', 'a']")
    data = Intake().plain(DATA["messages"])
    source = "{% set first = messages.pop(0) %}{{ first.role }}{{ messages|length }}"
    assert [run(source, messages=data) for _ in range(2)] == ["user1", "user1"]
    assert data == DATA["messages"]


@pytest.mark.parametrize(
    "source",
    [
        "{% set x = [] %}{{ x.append(x) }}{{ x }}",
        "{% set x = [] %}{% set y = [x] %}{{ x.append(y) }}",
        "{% set x = [] %}{% set y = [] %}{{ x.append(y) }}{{ y.append(x) }}",
        "{% set x = [] %}{% set y = [x] * 99 %}{% for i in range(9) %}{{ x.append('a') }}{% endfor %}{{ y }}",
        "{% set x = ['a' * 99999] %}{% for i in range(99999) %}{{ x.append(x[0]) }}{% endfor %}",
        "{% set x = [1] %}{% for i in x %}{{ x.append(i) }}{% endfor %}",
        "{% macro m() %}{% endmacro %}{% set x = [] %}{{ x.append(m) }}",
        "{{ messages[0].content.append(1) }}",
    ],
)
def test_lists_are_changed_within_the_budget(source: str) -> None:
    with pytest.raises(ModelError, match="cannot be used"):
        run(source)


def test_json_as_in_the_reference() -> None:
    assert run("{{ messages[1]|tojson }}") == '{"role": "assistant", "content": "Hi <b> ä"}'
    assert run("{{ numbers|tojson(indent=2, separators=(',', ':')) }}") == "[\n  3,\n  1,\n  2\n]"
    assert (
        run("{{ {'b': 'ä', 'a': none}|tojson(sort_keys=true, ensure_ascii=true) }}")
        == '{"a": null, "b": "\\u00e4"}'
    )


def test_the_clock_stops_a_template() -> None:
    program = Program("{% for a in range(99999) %}{{ a }}{% endfor %}")
    with pytest.raises(ModelError, match="time"):
        program.render({}, Budget(seconds=0))


TOKENS = """{{ }} {% %} {%- -%} for in if else endfor endif set macro endmacro x messages 'a' "b" 1 99 ( ) [ ]
 { } . , : | + - * ** / // % ~ == < not and or is defined join list range replace format __class__ self loop
 ns namespace string map attribute = \n #} {# raw endraw recursive"""


@settings(max_examples=300)
@given(st.lists(st.sampled_from(TOKENS.split(" ")), max_size=30), st.booleans())
def test_whatever_the_source_only_our_errors_come_out(tokens: list[str], wrapped: bool) -> None:
    source = " ".join(tokens)
    with suppress(ModelError, InvalidRequest):
        run(f"{{{{ {source} }}}}" if wrapped else source)
