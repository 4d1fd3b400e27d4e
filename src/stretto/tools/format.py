"""How a family of models writes tool calls: a description that one reader and one grammar maker interpret.

A turn is `opening`, one call or several with `joint` between them, and `closing`. A call is `before`, the
function's name, `between`, the arguments, and `after`. Where name and arguments are members of one JSON
object, `before` ends with `"name": "`, and the reader takes the members in any order.

Once a format is bound to a vocabulary, its special tokens are characters from `MARKS` on, in planes that
Unicode has left empty: text cannot forge them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from stretto.text.tokenizer import Tokenizer

MARKS = 0x40000
LAST_MARK = 0xDFFFF  # room for 655,360 ids
ID = "\ue1d0"  # stands for the id of a call
TYPE = "\ue1d1"  # stands for the JSON type of an argument

_DESCRIPTIVE = ("name", "signs", "ids", "whole_id", "says", "is_described")
_OBJECT = re.compile(r'\{[^{}]*"(name|tool_name)"\s*:\s*"$')


@dataclass(frozen=True)
class Tagged:
    """Arguments as tags, one for each: `key` stands before a name, `value` and `end` around its value.

    Strings are written as they are and other values as JSON. `value_json` is written instead of `value`
    before the latter, where the tags tell them apart; it may hold the value's `TYPE`. A string may stand
    between the texts of `verbatim`.
    """

    key: str
    value: str
    end: str
    value_json: str = ""
    verbatim: tuple[str, str] = ("", "")

    def value_of_type(self, kind: str) -> str:
        """The text before a value of a JSON type that is no string."""
        return (self.value_json or self.value).replace(TYPE, "number" if kind == "integer" else kind)


@dataclass(frozen=True)
class Literals:
    """Arguments as `name=value` or `name:value`, with commas between them; values are literals.

    `quote` stands around strings. Where it is empty, strings are those of Python and JSON, and so are other
    values.
    """

    assign: str
    comma: str
    quote: str = ""


@dataclass(frozen=True)
class Elements:
    """Arguments as elements that have their names: `<name>value</name>`, with `mark` before every tag.

    The members of an object are elements in its element, and the items of an array elements `item`. Strings
    are written as they are, and other values as JSON.
    """

    mark: str
    item: str = "item"


Encoding = Tagged | Literals | Elements | None  # JSON if None


@dataclass(frozen=True)
class CallFormat:
    """The format of one family.

    A template has this format if all texts of one of the `signs` are in its source. `joint` is None where a
    turn has one call at most. `ids` is a pattern for the ids of calls (`ID`), and `whole_id` the id that
    clients see. A call may also start with one of `aliases` in place of `before`, and the first one of an
    answer with `at_start`. A call of the function `says` is text. `block` is the empty reasoning that the
    template writes before a call, and `begun` the beginning of a call with which prompts end.
    `thoughts` stand around reasoning where it is a message of its own before the call,
    and `final` before an answer. `is_described`: the
    template shows no tools, so a message describes them.
    """

    name: str
    before: str
    between: str
    after: str = ""
    joint: str | None = None
    opening: str = ""
    closing: str = ""
    encoding: Encoding = None
    signs: tuple[tuple[str, ...], ...] = ()
    ids: str = "[a-zA-Z0-9]{9}"
    whole_id: str = ID
    aliases: tuple[str, ...] = ()
    at_start: str = ""
    says: str = ""
    block: str = ""
    begun: str = ""
    thoughts: tuple[str, str] = ("", "")
    final: str = ""
    is_described: bool = False

    @property
    def is_object(self) -> bool:
        """Whether a call is one JSON object that holds the name and the arguments."""
        return self.encoding is None and _OBJECT.search(self.before) is not None

    @property
    def lead(self) -> str:
        """The text of `before` in front of the JSON object."""
        return self.before[: self.before.rfind("{")] if self.is_object else self.before

    @property
    def tail(self) -> str:
        """The text of `after` behind the JSON object."""
        return self.after[self.after.find("}") + 1 :] if self.is_object else self.after

    @property
    def has_late_id(self) -> bool:
        """Whether the id of a call stands behind its arguments."""
        return ID in self.after

    def fits(self, source: str) -> bool:
        """Whether the source of a template shows this format."""
        return any(all(sign in source for sign in group) for group in self.signs)


def bind(layout: CallFormat, tokenizer: Tokenizer) -> CallFormat:
    """A format in which the special tokens of a vocabulary are marks."""
    marks = special_marks(tokenizer)
    return change_texts(layout, lambda text: with_marks(text, marks))


def spell_marks(layout: CallFormat, tokenizer: Tokenizer) -> CallFormat:
    """A format that was bound, with its special tokens spelled out."""

    def spell(text: str) -> str:
        return "".join(tokenizer.piece(ord(c) - MARKS) if is_mark(c) else c for c in text)

    return change_texts(layout, spell)


def change_texts(layout: CallFormat, change: Callable[[str], str]) -> CallFormat:
    """A format with all its texts changed."""
    found: CallFormat = _changed(layout, change)
    return found


def list_texts(value: Any) -> list[str]:
    """All texts of a format."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, tuple):
        return [text for one in value for text in list_texts(one)]
    if isinstance(value, (CallFormat, Tagged, Literals, Elements)):
        return [text for name in _names(value) for text in list_texts(getattr(value, name))]
    return []


def special_marks(tokenizer: Tokenizer) -> dict[str, str]:
    """The mark of each special token, by its text."""
    return {text: make_mark(token) for text, token in tokenizer.specials.items()}


def with_marks(text: str, marks: Mapping[str, str]) -> str:
    """A text in which special tokens are marks; of those that overlap, the longer."""
    for special in sorted((one for one in marks if one and one in text), key=len, reverse=True):
        text = text.replace(special, marks[special])
    return text


def shared_prefix(first: str, second: str) -> str:
    """The beginning that two texts share."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return "".join(one for one, _ in same)


def make_mark(token: int) -> str:
    """The character for a special token."""
    return chr(MARKS + token)


def is_mark(character: str) -> bool:
    """Whether a character stands for a special token."""
    return MARKS <= ord(character) <= LAST_MARK


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_changed(one, change) for one in value)
    if isinstance(value, (CallFormat, Tagged, Literals, Elements)):
        return replace(value, **{name: _changed(getattr(value, name), change) for name in _names(value)})
    return value


def _names(value: CallFormat | Tagged | Literals | Elements) -> list[str]:
    """The fields that are text in answers; the others describe the format."""
    return [field.name for field in fields(value) if field.name not in _DESCRIPTIVE]


# The formats of known families of models, for templates from which a format cannot be learned: formats.json.
#
# A new family is an entry there, with the fields of `CallFormat`; {ID} and {TYPE} stand for `ID` and `TYPE`.
# Those in `DECLARED` are chosen by the text of the template, in this order; those in `AFTER_LEARNING` where
# nothing could be learned; `GENERIC` where it has no tools.

_ENCODINGS = {"tags": Tagged, "literals": Literals, "elements": Elements}


def _read(value: Any) -> Any:
    """A value of the file as fields have it: tuples for lists, formats and encodings for objects."""
    if isinstance(value, str):
        return value.replace("{ID}", ID).replace("{TYPE}", TYPE)
    if isinstance(value, list):
        return tuple(map(_read, value))
    if not isinstance(value, dict):
        return value
    given = {name: _read(one) for name, one in value.items()}
    return _ENCODINGS.get(given.pop("kind", ""), CallFormat)(**given)


_data = json.loads(Path(__file__).with_name("formats.json").read_bytes())
DECLARED: tuple[CallFormat, ...] = _read(_data["declared"])
AFTER_LEARNING: tuple[CallFormat, ...] = _read(_data["after_learning"])
GENERIC: CallFormat = _read(_data["generic"])
