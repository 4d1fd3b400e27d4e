"""JSON files of a model folder: bounded, and read with errors that name the file and the field.

config = read_object(folder / "config.json")
config.integer("hidden_size")
config.object("rope_scaling").text("rope_type", "default")
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeVar

from stretto.errors import ModelError

T = TypeVar("T")

MAX_BYTES = 4 << 20  # of a configuration; larger files say so
_MISSING: Any = object()


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """The bytes of a file in a model folder; `ModelError` if there is none, or too much of it."""
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise ModelError("is no ordinary file", path=path)
        if status.st_size > most:
            raise ModelError(f"has {status.st_size} bytes; at most {most} are read", path=path)
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise ModelError("no such file", path=path) from None
    except OSError as error:
        raise ModelError(f"cannot be read: {error}", path=path) from None


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """The text of a file in a model folder."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelError(f"not UTF-8: {error}", path=path) from None


def read_json(path: Path, most: int = MAX_BYTES) -> Any:
    """The value in a JSON file."""
    try:
        return json.loads(read_text(path, most))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"is no JSON: {error}", path=path) from None


def read_object(path: Path, most: int = MAX_BYTES) -> Fields:
    """The object in a JSON file."""
    value = read_json(path, most)
    if not isinstance(value, dict):
        raise ModelError(f"must hold an object, found {name_kind(value)}", path=path)
    return Fields(value, path)


class Fields(Mapping[str, Any]):
    """An object of a JSON file, as a mapping, or through typed getters; null counts as a missing field."""

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self.values_by_name = {name: value for name, value in values.items() if value is not None}
        self.path = path
        self.prefix = prefix

    def __getitem__(self, name: str) -> Any:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def error(self, name: str, message: str) -> ModelError:
        """An error about a field."""
        return ModelError(message, path=self.path, field=self.prefix + name)

    def integer(self, name: str, default: int = _MISSING, least: int = 0, most: int = 1 << 40) -> int:
        """The integer in a field, within limits."""
        value = self._value(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "an integer", value)
        if value is not default and not least <= value <= most:
            raise self.error(name, f"is {value}; {least} to {most} is possible")
        return value

    def number(self, name: str, default: float = _MISSING) -> float:
        """The number in a field."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e30:
            raise self._wrong(name, "a number", value)
        return float(value)

    def flag(self, name: str, default: bool = _MISSING) -> bool:
        """The boolean in a field."""
        return self._typed(name, default, bool, "a boolean")

    def text(self, name: str, default: str = _MISSING) -> str:
        """The string in a field."""
        return self._typed(name, default, str, "a string")

    def list(self, name: str, default: list[Any] = _MISSING) -> list[Any]:
        """The array in a field."""
        return self._typed(name, default, list, "an array")

    def object(self, name: str, default: dict[str, Any] = _MISSING) -> Fields:
        """The object in a field."""
        value = self._typed(name, default, dict, "an object")
        return Fields(value, self.path, f"{self.prefix}{name}.")

    def _typed(self, name: str, default: T, kind: type[T], wanted: str) -> T:
        value = self._value(name, default)
        if not isinstance(value, kind):
            raise self._wrong(name, wanted, value)
        return value

    def _value(self, name: str, default: Any) -> Any:
        value = self.values_by_name.get(name, default)
        if value is _MISSING:
            raise self.error(name, "the field is missing; is this a complete folder?")
        return value

    def _wrong(self, name: str, wanted: str, value: Any) -> ModelError:
        return self.error(name, f"must be {wanted}, found {name_kind(value)}")


def name_kind(value: Any) -> str:
    """The JSON name of a value's type, for messages."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
