"""The tables of options: the same names and defaults as the code, and what help and docs make of them."""

import inspect
import pydoc
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import stretto
from stretto.engine.params import NAMES, SAMPLING_NAMES, Branching, Options, RequestParams
from stretto.options import generating, loading
from stretto.options.keywords import Keywords, ParallelOptions
from stretto.parallel.options import ParallelParams
from stretto.sampling.params import SamplingParams

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"

CALLS = [
    (stretto.LLM.generate, generating.GENERATE),
    (stretto.LLM.agenerate, generating.GENERATE),
    (stretto.LLM.stream, generating.STREAM),
    (stretto.LLM.astream, generating.STREAM),
    (stretto.LLM.chat, generating.CHAT),
    (stretto.LLM.achat, generating.CHAT),
    (stretto.LLM.parallel, generating.PARALLEL),
    (stretto.LLM.step, generating.SAMPLING),
    (stretto.Sequence.step, generating.SAMPLING),
    (stretto.sample, generating.SAMPLING),
    (stretto.Options, generating.OPTIONS),
    (stretto.load, loading.LOAD),
]


def names(table):
    return [option.name for option in table]


def defaults_of(*classes):
    return {field.name: field.default for one in classes for field in fields(one)}


def test_the_tables_have_the_options_that_the_code_has_and_each_once():
    assert sorted(names(generating.GENERATE)) == sorted([*Keywords.__annotations__, "n"])
    assert tuple(names(generating.SAMPLING)) == SAMPLING_NAMES
    assert sorted(names(generating.PARALLEL)) == sorted([*ParallelOptions.__annotations__, "stream"])
    assert names(loading.LOAD) == list(inspect.signature(stretto.load).parameters)[1:]
    for _, table in CALLS:
        assert len(set(names(table))) == len(table)
    assert len(set(NAMES)) == len(NAMES)


def test_the_tables_have_the_defaults_that_the_code_has():
    real = defaults_of(SamplingParams, RequestParams, Branching)
    real |= {"loop": "auto", "adapter": None, "stop_tokens": ()}  # as they are given
    table = {option.name: option.default for option in generating.GENERATE}
    assert table == {name: real[name] for name in table}
    assert {option.name: option.default for option in generating.PARALLEL_OWN} == defaults_of(ParallelParams)
    assert {option.name: option.default for option in loading.LOAD} == defaults_of(loading.LoadOptions)
    parameters = inspect.signature(stretto.load).parameters
    assert all(parameters[option.name].default == option.default for option in loading.LOAD)
    assert MISSING not in table.values()


@pytest.mark.parametrize(("call", "table"), CALLS, ids=lambda one: getattr(one, "__qualname__", "")[:30])
def test_help_lists_every_option_with_type_default_and_meaning(call, table):
    text = pydoc.getdoc(call)
    flat = " ".join(text.split())
    for option in table:
        assert f"{option.heading} {option.text}" in flat
    assert set(names(table)) <= set(inspect.signature(call).parameters)


def test_options_as_a_value_takes_what_the_table_lists():
    given = {option.name: option.default for option in generating.OPTIONS}
    assert dict(Options(**given)) == given


def test_the_types_are_made_from_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(PAGE.parents[2] / "scripts"))
    from option_types import FILE, page

    assert FILE.read_text() == page(), "run: python scripts/option_types.py"


def test_the_page_of_documentation_is_made_from_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(PAGE.parents[2] / "scripts" / "site"))
    monkeypatch.syspath_prepend(str(PAGE.parents[2] / "scripts"))
    from titles import linked

    from reference.options import page

    assert PAGE.read_text() == linked(page(), "reference"), "run: python scripts/doc_reference.py"
