"""`Grammar`: the constraint of constrained decoding."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stretto.errors import InvalidGrammar, wrong_value
from stretto.structured.checks import (
    MAX_LARK_CHARACTERS,
    check_described,
    check_lark,
    check_regex,
    check_schema,
    check_size,
    parser_schema,
)

# Grammars in GBNF, llama.cpp's notation, as Lark grammars. Used by `Grammar.gbnf`.

_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
_SYNTAX = '"\\[]^-\n\r\t'  # characters that mean something within a text or a class


def gbnf_to_lark(text: str) -> str:
    """The same language in Lark's notation; raises for a grammar that is no GBNF.

    >>> gbnf_to_lark('root ::= "a"{3}').split()[-1]
    '"a"{3}'
    """
    check_size(text, "a GBNF grammar", "text", MAX_LARK_CHARACTERS)
    from llguidance.gbnf_to_lark import gbnf_to_lark as converted

    try:
        made: str = converted(_ESCAPE.sub(_written_out, text))
        return made
    except InvalidGrammar:
        raise
    except RecursionError:
        raise InvalidGrammar("the GBNF grammar is nested too deeply", param="text") from None
    except Exception as error:  # the converter raises plain ones
        raise InvalidGrammar(f"the GBNF grammar cannot be read: {error}", param="text", value=text) from None


def _written_out(escape: re.Match[str]) -> str:
    r"""The character of `\u` and `\U`, which the converter misreads; other escapes stay."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise InvalidGrammar(f"the GBNF grammar has {escape[0]}, which is no character", param="text")
    if code < 0x20 or chr(code) in _SYNTAX:
        return f"\\x{code:02X}"
    return chr(code)


Kind = Literal["json", "schema", "regex", "lark", "choices", "tools"]

# The names in llguidance. Separators and white space are regular expressions there.
WHITESPACE: dict[str, dict[str, Any]] = {
    "spaced": {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False},
    "compact": {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False},
    # Bounded, so that a model cannot generate white space for ever.
    "flexible": {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,64}"},
}


TURN = '{"from": "start"}'  # the options of a grammar for tools that holds the reasoning too
CLASSES = {r"\d": "0-9", r"\w": "0-9A-Za-z_", r"\s": r" \t\n\r\f\v"}


@dataclass(frozen=True)
class Grammar:
    """The constraint on the text of an answer. Make one with `json`, `regex`, `lark`, `gbnf` or `choices`.

        llm.generate(prompt, grammar=Grammar.regex(r"\\d{4}-\\d{2}-\\d{2}"))

    It is a value: two with the same content are equal, and a model compiles them once.

    >>> Grammar.choices(["yes", "no"]) == Grammar.choices(["yes", "no"])
    True
    """

    kind: Kind
    text: str
    options: str = "{}"  # of a JSON grammar: its separators and white space, as JSON

    @property
    def covers_reasoning(self) -> bool:
        """Whether it is for the whole turn, and does not wait for the reasoning to end."""
        return self.kind == "tools" and self.options == TURN

    @classmethod
    def json(
        cls,
        schema: Any,
        *,
        whitespace: str = "spaced",
        whitespace_pattern: str | None = None,
        closed: bool = False,
        documents: Mapping[str, Any] | None = None,
    ) -> Grammar:
        """JSON that fits a schema: a dict, its text, or a class with `model_json_schema` (as of pydantic).

        `whitespace` is "spaced" (as `json.dumps` writes), "compact" (none), or "flexible" (whatever the
        model likes). `whitespace_pattern` is a regular expression for it instead. `closed` forbids
        properties that are not named in objects that do not say `additionalProperties`. `documents` are
        schemas by their URIs, to which `$ref` may lead; nothing is ever fetched.

        >>> Grammar.json({"type": "integer", "minimum": 1, "maximum": 6}).kind
        'json'
        """
        if whitespace not in WHITESPACE:
            raise wrong_value("whitespace", whitespace, f"one of {', '.join(WHITESPACE)}")
        options = WHITESPACE[whitespace]
        if whitespace_pattern is not None:
            check_regex(whitespace_pattern, "whitespace_pattern")
            options = {"whitespace_pattern": whitespace_pattern}
        if callable(getattr(schema, "model_json_schema", None)):
            schema = schema.model_json_schema()
        text = parser_schema(check_schema(schema, documents), closed=closed, checks=True)
        return cls("json", text, json.dumps(options))

    @classmethod
    def of_schema(cls, schema: Any, **options: Any) -> Grammar:
        """As `json`, but the schema is checked and rewritten when it is compiled.

        For callers that must not wait: rewriting may take seconds.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        check_described(text)
        return cls("schema", text, json.dumps(options))

    def prepared(self) -> Grammar:
        """The grammar as the parser takes it."""
        return self if self.kind != "schema" else Grammar.json(self.text, **json.loads(self.options))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """A text that a regular expression matches as a whole. It has no look-around or back-references.

        \\d, \\w and \\s are ASCII.

        >>> Grammar.regex(r"[a-z]+@[a-z]+\\.org").text
        '[a-z]+@[a-z]+\\\\.org'
        """
        check_regex(pattern, "pattern")
        return cls("regex", pattern)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A text of a context-free grammar, written as for Lark (stretto docs grammars: what differs).

        >>> Grammar.lark('start: "a" start | "b"').kind
        'lark'
        """
        check_lark(text)
        return cls("lark", text)

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """A text of a grammar in GBNF, llama.cpp's notation; its first rule is `root`.

        >>> Grammar.gbnf('root ::= [0-9]+').kind
        'lark'
        """
        return cls.lark(gbnf_to_lark(text))

    @classmethod
    def choices(cls, choices: Iterable[str]) -> Grammar:
        """One of some texts.

        >>> Grammar.choices(["red", "green"]).text
        '["red", "green"]'
        """
        if isinstance(choices, (str, bytes, Mapping)) or not isinstance(choices, Iterable):
            raise InvalidGrammar(
                f"choices must be a list of texts, not {choices!r}", param="choices", value=choices
            )
        texts = list(choices)
        for choice in texts:
            if not isinstance(choice, str) or not choice:
                raise InvalidGrammar(
                    f"choices must be texts of at least one character, not {choice!r}",
                    param="choices",
                    value=choice,
                )
        if not texts:
            raise InvalidGrammar("choices is empty; give at least one text", param="choices", value=texts)
        text = json.dumps(list(dict.fromkeys(texts)), ensure_ascii=False)
        check_size(text, "choices", "choices")
        return cls("choices", text)

    def __repr__(self) -> str:
        short = self.text if len(self.text) <= 60 else f"{self.text[:57]}..."
        return f"Grammar.{self.kind}({short!r})"


def as_grammar(value: Any) -> Grammar:
    """The grammar of an option's value: a `Grammar`, or a JSON schema (a dict, a class of pydantic's)."""
    if isinstance(value, Grammar):
        return value
    if isinstance(value, Mapping) or callable(getattr(value, "model_json_schema", None)):
        return Grammar.json(value)
    raise InvalidGrammar(
        f"grammar must be a JSON schema (a dict) or made by stretto.Grammar, not {value!r:.100}; "
        "there are Grammar.json, .regex, .choices, .lark and .gbnf",
        param="grammar",
        value=value,
    )


def choice_pattern(text: str) -> str:
    """A regular expression for the choices of a grammar."""
    return "|".join(_literal(choice) for choice in json.loads(text))


def ascii_classes(pattern: str) -> str:
    """A pattern in which \\d, \\w and \\s mean ASCII, as patterns for dates and names expect.

    What is negated, also within brackets, keeps its meaning: nothing is allowed that was not before.

    >>> ascii_classes(r"\\d[\\w.]\\D")
    '[0-9][0-9A-Za-z_.]\\\\D'
    """
    pieces, brackets, negated = [], 0, False
    for match in re.finditer(r"\\.?|\[\^?\]?|\]|[^\\\[\]]+", pattern, re.DOTALL):
        piece = match[0]
        if piece.startswith("["):
            brackets += 1
            negated = negated or piece.startswith("[^")
        elif piece == "]":
            brackets = max(0, brackets - 1)
            negated = negated and brackets > 0
        elif piece in CLASSES and not negated:
            piece = CLASSES[piece] if brackets else f"[{CLASSES[piece]}]"
        pieces.append(piece)
    return "".join(pieces)


def _literal(text: str) -> str:
    """A regular expression that matches a text and nothing else, for any dialect."""
    return re.sub(r"[^\w ]", lambda match: f"\\x{{{ord(match[0]):X}}}", text)
