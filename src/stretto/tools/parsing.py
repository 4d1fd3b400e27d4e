"""The parser of calls: one for all formats, which steps through a text that comes piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from stretto.engine.types import ToolCall
from stretto.tools.format import ID, CallFormat, Elements, Literals, Tagged
from stretto.tools.json_reading import (
    Malformed,
    Source,
    Steps,
    read_json,
    read_key,
    read_literal,
    read_string,
)
from stretto.tools.tag_reading import ElementReader, read_tags

NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")
ID_KEYS = ("id", "tool_call_id", "call_id")
MAX_HEADER = 256  # characters between a name and its arguments

_NAME = re.compile(r"[\w.\-]+")


@dataclass(frozen=True)
class Event:
    """One of: text beside the calls; the start of a call; a piece of its arguments; its end.

    A call that starts has a name and an id. `call` is the whole call, at its end. A call that never ends
    could not be read, or was cut: its text comes as text, with `is_told` as far as its pieces have told it.
    """

    text: str = ""
    is_told: bool = False
    index: int = -1  # of the call among those of the answer; of text, the call that has told it
    name: str = ""
    id: str = ""
    arguments: str = ""
    call: ToolCall | None = None


class Stop(NamedTuple):
    """A stop string that ended an answer; `is_within` a call that is whole with it, which is kept."""

    text: str
    is_shown: bool = False
    is_within: bool = False


class Receiver:
    """What a parser tells of a call: its start, its arguments piece by piece, its end."""

    def start(self, name: str, given: str) -> None:
        """A call has a name and, if the format has them, an id."""

    def add(self, piece: str) -> None:
        """More of the arguments, as JSON."""

    def finish(self) -> None:
        """The call is whole."""

    def drop(self) -> None:
        """It was no call."""


class CallParser:
    """Parses calls in a format; `schemas` are those of the functions' parameters, by name."""

    def __init__(
        self, layout: CallFormat, schemas: Mapping[str, Any], source: Source, receiver: Receiver
    ) -> None:
        self._layout = layout
        self._schemas = schemas
        self._source = source
        self._receiver = receiver
        self._opening = layout.opening if layout.opening.strip() else ""  # white space is no marker
        self._is_list = layout.opening.rstrip().endswith("[")
        lead = "" if self._is_list and layout.lead.strip() in ("", '{"') else layout.lead
        starts = sorted((one for one in (lead, *layout.aliases) if one.strip()), key=len, reverse=True)
        self._starts = starts
        self._openings = sorted({self._opening, *starts} - {""}, key=len, reverse=True)

    @property
    def is_bare(self) -> bool:
        """Whether a call may be nothing but an object: then only a known name makes it one."""
        return not self._opening and not self._layout.lead.strip()

    @property
    def markers(self) -> list[str]:
        """The texts by which a call may begin: without white space, and without the beginning of JSON."""
        found = {_head(text) for text in self._openings} | ({"{"} if self.is_bare else set())
        return sorted(found, key=len, reverse=True)

    def read_calls(self, is_first: bool = False) -> Steps[None]:
        """Take the calls from here on; `Malformed` if there is none.

        `is_first`: the answer begins here.
        """
        source, layout = self._source, self._layout
        opened = bool(self._opening) and (yield from source.skip(self._opening))
        if not opened and self._is_list:  # a model may leave the bracket out
            opened = yield from source.skip(_head(layout.opening))
        if is_first and layout.at_start:
            opened = yield from source.skip(layout.at_start)
        listed = yield from self._read_call(opened)
        while True:
            end = source.at
            yield from source.skip_white()
            if (yield from source.skip(",")) or (yield from source.skip(";")):
                yield from source.skip_white()
            if not (yield from self._may_begin(opened, listed)):
                source.at = end
                break
            start = source.at
            yield from source.skip(self._opening)
            try:
                listed = (yield from self._read_call(True)) or listed
            except Malformed:
                self._receiver.drop()
                source.at = start
                return
        yield from self._close(listed)

    def _close(self, listed: bool) -> Steps[None]:
        """Take what ends a list of calls, as far as it is there."""
        source, layout = self._source, self._layout
        if listed or self._is_list:
            yield from source.skip("]")
        if listed:
            yield from source.skip(layout.tail)
        yield from source.skip(layout.closing.strip().removeprefix("]"))

    def _may_begin(self, opened: bool, listed: bool) -> Steps[bool]:
        """Whether another call begins here; nothing is taken."""
        source, start = self._source, self._source.at
        for marker in self._openings:
            if (yield from source.skip(marker)):
                source.at = start
                return True
        is_inner = listed or ((opened or self.is_bare) and self._layout.lead.strip() in ("", '{"'))
        if not is_inner or source.at >= len(source.text):
            return False
        first = source.text[source.at]
        return first == "{" or (isinstance(self._layout.encoding, Literals) and first.isidentifier())

    def _read_call(self, opened: bool) -> Steps[bool]:
        """Take one call; whether it stood in a list of JSON."""
        source, layout = self._source, self._layout
        begun = False
        for marker in self._starts:
            if (yield from source.skip(marker)):
                begun = True
                break
        if not begun and not opened and not self.is_bare:
            raise Malformed
        yield from source.skip_white()
        first = yield from source.peek()
        if layout.is_object or (first in "{[" and layout.lead.strip() != '{"'):
            listed = first == "["
            source.at += listed
            yield from self._read_object()
            if not listed:
                yield from source.skip(layout.tail)
            return listed
        if not begun and layout.lead.strip() == '{"':
            yield from source.expect('{"')
        yield from self._read_named()
        return False

    def _read_named(self) -> Steps[None]:
        """Take the name, the text up to the arguments, the arguments, and the text after them."""
        source, layout = self._source, self._layout
        yield from source.skip_white()
        name = yield from source.take(_NAME)
        if "functions." in layout.before:
            name = name.removeprefix("functions.")
        if not name:
            raise Malformed
        if name == layout.says:
            yield from source.skip_white()
            return
        given = yield from self._read_between()
        yield from self._check_arguments()
        whole = layout.whole_id.replace("{name}", name).replace(ID, given) if given else ""
        self._receiver.start(name, whole)
        yield from self._read_arguments(name)
        if layout.encoding is not None:
            yield from source.expect(_end(layout))
        self._receiver.finish()
        yield from source.skip(layout.after if layout.encoding is None else layout.after[len(_end(layout)) :])

    def _read_between(self) -> Steps[str]:
        """Take the text between name and arguments; the id in it."""
        source, between = self._source, self._layout.between
        last = between.strip()[-1:]
        if not "\ud800" <= last <= "\udfff":
            yield from source.expect(between)
            return ""
        header = yield from source.take_until(last)
        if len(header) > MAX_HEADER:
            raise Malformed
        found = re.search(self._layout.ids, header) if ID in between else None
        return found[0] if found else ""

    def _check_arguments(self) -> Steps[None]:
        """Raise `Malformed` unless arguments may begin here."""
        source, encoding = self._source, self._layout.encoding
        yield from source.skip_white()
        start = source.at
        if encoding is None and (yield from source.peek()) != "{":
            raise Malformed
        if isinstance(encoding, Tagged):
            if not (yield from source.skip(encoding.key)):
                yield from source.expect(_end(self._layout))
            source.at = start
        if isinstance(encoding, Elements):
            yield from source.expect(encoding.mark + "<")
            source.at = start

    def _read_arguments(self, name: str) -> Steps[None]:
        """Take the arguments of a call in the encoding of the format."""
        source, encoding, add = self._source, self._layout.encoding, self._receiver.add
        if isinstance(encoding, Tagged):
            yield from read_tags(source, add, encoding, self._schemas.get(name, {}))
        elif isinstance(encoding, Elements):
            yield from ElementReader(source, add, encoding, self._schemas.get(name, {})).read()
        elif isinstance(encoding, Literals):
            yield from self._read_literals(encoding)
        else:
            yield from read_json(source, add)

    def _read_literals(self, encoding: Literals) -> Steps[None]:
        source, add, closing = self._source, self._receiver.add, _end(self._layout)
        add("{")
        is_first = True
        while True:
            yield from source.skip_white()
            if (yield from source.peek()) == closing:
                break
            if not is_first:
                yield from source.expect(",")
                add(", ")
            is_first = False
            yield from read_key(source, add, encoding.quote, encoding.assign)
            add(": ")
            yield from read_literal(source, add, encoding.quote)
        add("}")

    def _read_object(self) -> Steps[None]:
        """Take a call that is one JSON object, its members in any order."""
        members = _Members(self._source, self._receiver, self._layout, self._check)
        yield from members.read()
        members.finish()

    def _check(self, name: str) -> None:
        if self.is_bare and name not in self._schemas:
            raise Malformed


class _Members:
    """The members of the JSON object of a call: the name may come after the arguments."""

    def __init__(
        self, source: Source, receiver: Receiver, layout: CallFormat | None, check: Callable[[str], None]
    ) -> None:
        self._source = source
        self._receiver = receiver
        self._is_late = layout is None or layout.has_late_id  # the id comes last, and a call starts with it
        self._says = "" if layout is None else layout.says
        self._check = check
        self._name = ""
        self._given = ""
        self._held: list[str] = []
        self._has_started = self._has_arguments = False

    def read(self) -> Steps[None]:
        """Take the object, or the one in its member `function`."""
        source = self._source
        yield from source.expect("{")
        is_first = True
        while not (yield from source.skip("}")):
            if not is_first:
                yield from source.expect(",")
            is_first = False
            yield from source.skip_white()
            key = yield from _string(source)
            yield from source.expect(":")
            yield from source.skip_white()
            first = yield from source.peek()
            if key in NAME_KEYS and first == '"' and not self._name:
                self._name = yield from _string(source)
                self._check(self._name)
            elif key in ID_KEYS and first == '"':
                self._given = yield from _string(source)
            elif key in ARGUMENT_KEYS and not self._has_arguments:
                yield from self._arguments(first)
            elif key == "function" and first == "{":
                yield from self.read()
            else:
                yield from read_json(source, lambda piece: None)

    def _arguments(self, first: str) -> Steps[None]:
        self._has_arguments = True
        if first == '"':  # JSON in JSON
            text = yield from _string(self._source)
            self._add(_object_text(text))
            return
        if first != "{":
            raise Malformed
        yield from read_json(self._source, self._add)

    def _add(self, piece: str) -> None:
        self._held.append(piece)
        if self._name and not self._is_late and self._name != self._says:
            self._give()

    def _give(self) -> None:
        if not self._has_started:
            self._has_started = True
            self._receiver.start(self._name, self._given)
        for piece in self._held:
            self._receiver.add(piece)
        self._held = []

    def finish(self) -> None:
        """The object has ended."""
        if not self._name or not self._has_arguments:
            raise Malformed
        if self._name == self._says:
            return
        self._give()
        self._receiver.finish()


def read_json_call(value: Any) -> tuple[str, dict[str, Any], str] | None:
    """The name, the arguments and the id of a call that is a JSON value; None if it is none."""
    source = Source()
    source.text, source.has_ended = json.dumps(value), True
    found = _Collector()
    members = _Members(source, found, None, lambda name: None)
    try:
        for _ in members.read():
            pass
        members.finish()
    except Malformed:
        return None
    return found.name, replace_surrogates(json.loads("".join(found.pieces))), replace_surrogates(found.given)


def replace_surrogates(value: Any) -> Any:
    """A JSON value without halves of surrogate pairs, which no text can hold."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [replace_surrogates(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {replace_surrogates(key): replace_surrogates(one) for key, one in value.items()}


class _Collector(Receiver):
    """Collects one call."""

    def __init__(self) -> None:
        self.name = self.given = ""
        self.pieces: list[str] = []

    def start(self, name: str, given: str) -> None:
        self.name, self.given = name, given

    def add(self, piece: str) -> None:
        self.pieces.append(piece)


def _string(source: Source) -> Steps[str]:
    parts: list[str] = []
    yield from read_string(source, parts.append)
    return str(json.loads('"' + "".join(parts) + '"'))


def _object_text(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed from None
    if not isinstance(value, dict):
        raise Malformed
    return json.dumps(value, ensure_ascii=False)


def _end(layout: CallFormat) -> str:
    """The text that has to come after arguments that are no JSON."""
    return layout.after[0] if isinstance(layout.encoding, Literals) else _head(layout.after)


def _head(text: str) -> str:
    """The first word of a marker, up to where JSON may begin."""
    word = text.split()[0] if text.split() else ""
    stripped = word.rstrip('[{"')
    return stripped or word
