"""A reader of protobuf's wire format, for untrusted files.

A message is a row of fields: a key (number and wire type) and a value. Lengths are compared with what is left
of the enclosing message before they are used; nothing is copied but names, so a field of gigabytes costs
nothing. `Wire.read` reads one message by a table of the fields that matter; all others are skipped.

It exists because a protobuf library copies the whole file into objects before anything can be checked, and
lets a field that may appear once appear twice, of which readers take one or the other, or both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np

from stretto.errors import ModelError
from stretto.weights.onnx.model import OnnxLimits

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10
SIGN, WRAP = 1 << 63, 1 << 64
COUNTED_BYTES = 1 << 20  # at a time

Span = tuple[int, int]


@dataclass(frozen=True)
class Field:
    """A field that is read: its name, its kind, and whether it may be repeated.

    Kinds: "int" (signed, 64 bits), "float", "text" (UTF-8), "span" (bytes that stay where they are), and
    "ints" and "floats": lists of numbers, packed or not, of which the spans are kept.
    """

    name: str
    kind: str
    many: bool = False


Schema = Mapping[int, Field]
WIRE_TYPES = {"int": VARINT, "float": FIXED32, "text": BYTES, "span": BYTES}
UNPACKED = {"ints": VARINT, "floats": FIXED32, "doubles": FIXED64}


class Wire:
    """The bytes of a file, and how much of them may still be read."""

    def __init__(self, buffer: memoryview, path: Path, limits: OnnxLimits) -> None:
        self.buffer = buffer
        self.path = path
        self.fields_left = limits.fields
        self.text_left = limits.text_bytes
        # Counted as their places are noted, before any of them is read.
        self.most = {"nodes": limits.nodes, "initializers": limits.tensors, "sparse": limits.tensors}

    def error(self, message: str, field: str, offset: int | None = None) -> ModelError:
        """The error for a place in the file."""
        return ModelError(message, path=self.path, offset=offset, field=field)

    def read(self, span: Span, schema: Schema, where: str) -> dict[str, Any]:
        """The fields of one message; one that is repeated, or a list of numbers, gives a list."""
        found: dict[str, Any] = {}
        for number, wire_type, value, stop in self._fields(span, where):
            field = schema.get(number)
            if field is None:
                continue
            if field.kind in UNPACKED:
                found.setdefault(field.name, []).append(self._list_part(field, wire_type, value, stop, where))
                continue
            if wire_type != WIRE_TYPES[field.kind]:
                raise self.error(f"wire type {wire_type} in a field of {field.kind}", f"{where}.{field.name}")
            item = self._value(field, value, stop, where)
            if field.many:
                items = found.setdefault(field.name, [])
                items.append(item)
                if len(items) > self.most.get(field.name, len(items)):
                    what = "nodes" if field.name == "nodes" else "tensors"
                    raise self.error(f"more than {self.most[field.name]} {what}", where, value)
            elif field.name in found:
                raise self.error("the field is there twice; export the model again", f"{where}.{field.name}")
            else:
                found[field.name] = item
        return found

    def _value(self, field: Field, value: int, stop: int, where: str) -> Any:
        if field.kind == "int":
            return value - WRAP if value >= SIGN else value
        if field.kind == "float":
            return unpack_from("<f", self.buffer, value)[0]
        return (value, stop) if field.kind == "span" else self._text((value, stop), f"{where}.{field.name}")

    def _text(self, span: Span, where: str) -> str:
        self.text_left -= span[1] - span[0]
        if self.text_left < 0:
            raise self.error("names and metadata are larger than any model's", where, span[0])
        try:
            return str(self.buffer[span[0] : span[1]], "utf-8")
        except UnicodeDecodeError:
            raise self.error("the text is not UTF-8", where, span[0]) from None

    def _list_part(self, field: Field, wire_type: int, value: int, stop: int, where: str) -> Span | int:
        """A span of packed numbers, or one number that is not packed (for "ints": the number itself)."""
        if wire_type == BYTES:
            return value, stop
        if wire_type != UNPACKED[field.kind]:
            raise self.error(f"wire type {wire_type} in a list of numbers", f"{where}.{field.name}")
        return value

    def _fields(self, span: Span, where: str) -> Iterator[tuple[int, int, int, int]]:
        """(number, wire type, value or start, stop) of each field of a message."""
        at, end = span
        while at < end:
            self.fields_left -= 1
            if self.fields_left < 0:
                raise self.error("more fields than any model has", where, at)
            first, key, at = at, *self._varint(at, end, where)
            number, wire_type = key >> 3, key & 7
            if wire_type == VARINT:
                value, at = self._varint(at, end, where)
                yield number, VARINT, value, at
                continue
            if wire_type == BYTES:
                length, at = self._varint(at, end, where)
            elif wire_type in (FIXED32, FIXED64):
                length = 4 if wire_type == FIXED32 else 8
            else:
                raise self.error(f"wire type {wire_type}; is this an ONNX file?", where, first)
            if length > end - at:
                raise self.error(f"{length} bytes of field {number}, but {end - at} are left", where, first)
            yield number, wire_type, at, at + length
            at += length

    def _varint(self, at: int, end: int, where: str) -> tuple[int, int]:
        """An unsigned number of up to 64 bits, and the offset behind it."""
        buffer = self.buffer
        if at < end and buffer[at] < 0x80:
            return buffer[at], at + 1
        value = shift = 0
        for index in range(at, min(end, at + MAX_VARINT_BYTES)):
            byte = buffer[index]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (WRAP - 1), index + 1
            shift += 7
        raise self.error("a number that does not end", where, at)

    # -- lists of numbers --

    def integers(self, parts: list[Span | int], most: int, where: str) -> tuple[int, ...]:
        """The signed integers of a list; more than `most` of them are refused."""
        found: list[int] = []
        for part in parts:
            if isinstance(part, int):
                found.append(part)
            else:
                at, end = part
                while at < end and len(found) <= most:
                    value, at = self._varint(at, end, where)
                    found.append(value)
            if len(found) > most:
                raise self.error(f"more than {most} numbers", where)
        return tuple(value - WRAP if value >= SIGN else value for value in found)

    def count(self, parts: list[Span | int], kind: str, where: str) -> int:
        """How many numbers a list has, without reading them."""
        n = 0
        for part in parts:
            if isinstance(part, int):
                n += 1
                continue
            start, stop = part
            if kind == "ints":
                n += self._count_varints(start, stop)
                continue
            size = 4 if kind == "floats" else 8
            if (stop - start) % size:
                raise self.error(f"{stop - start} bytes of numbers of {size}", where, start)
            n += (stop - start) // size
        return n

    def _count_varints(self, start: int, stop: int) -> int:
        """Each number ends with the only byte of it that is below 128."""
        n = 0
        for at in range(start, stop, COUNTED_BYTES):
            part = np.frombuffer(self.buffer[at : min(at + COUNTED_BYTES, stop)], np.uint8)
            n += int(np.count_nonzero(part < 0x80))
        return n
