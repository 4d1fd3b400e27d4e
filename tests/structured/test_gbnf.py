"""Grammars in GBNF."""

import pytest

from stretto import Grammar
from stretto.errors import InvalidGrammar
from stretto.testing import mock_llm

SUM = "root ::= num ([+-] num)*\nnum ::= [0-9]{1,2} # digits"


@pytest.mark.parametrize(
    ("grammar", "wanted", "text"),
    [
        ('root ::= "a"{5,5}', "hello", "aaaaa"),
        (SUM, "12+34", "12+34"),
        (r'root ::= "\u00e4" [\u0041-\u0043] [^\u005D]', "äB!", "äB!"),
        (r'root ::= "\\u" ("x" | yes-no)' + '\nyes-no ::= "no"', r"\uno", r"\uno"),
    ],
)
def test_texts_fit_the_grammar(grammar, wanted, text):
    assert mock_llm(wanted).generate("x", grammar=Grammar.gbnf(grammar), max_tokens=12).text == text


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        "root ::= (not",
        "root ::= missing",
        'other ::= "a"',
        r'root ::= "\uD800"',
        "root ::= " + "(" * 5000,
    ],
)
def test_what_is_no_gbnf_is_refused(grammar):
    with pytest.raises(InvalidGrammar, match="GBNF"):
        Grammar.gbnf(grammar)
