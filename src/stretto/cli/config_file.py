"""The configuration file: a user's choices, which commands go by unless an option says otherwise.

    model = "qwen2.5-coder-1.5b"     # when none is named
    system = "Answer briefly."

    [sampling]
    temperature = 0.2

    [alias]
    fast = "smollm2"

It is TOML, `stretto/config.toml` in $XDG_CONFIG_HOME or ~/.config; $STRETTO_CONFIG is another path. Only the
command line reads it: Python programs say what they want by arguments. `stretto config` shows and edits it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import InvalidRequest
from stretto.options.generating import BY_NAME, SAMPLING
from stretto.options.loading import BY_NAME as LOADING

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 1 << 20
MAX_TEXT = 1 << 16  # characters of a value
NUMBERS = tuple(option.name for option in SAMPLING if option.low is not None)
SWITCH = {**dict.fromkeys(("true", "on", "yes"), True), **dict.fromkeys(("false", "off", "no"), False)}

_ALIAS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_BARE = re.compile(r"[A-Za-z0-9_\-]+")
_PART = r"""(?:[A-Za-z0-9_\-]+|"[^"\\\n]*"|'[^'\n]*')"""
_HEADER = re.compile(rf"\s*\[\s*({_PART}(?:\s*\.\s*{_PART})*)\s*\]\s*(?:#.*)?")
_ENTRY = re.compile(rf"(\s*)({_PART}(?:\s*\.\s*{_PART})*)\s*=\s*")


@dataclass(frozen=True)
class Config:
    """A user's settings; None, or an empty table, where nothing is set.

    >>> Config(aliases={"fast": "smollm2"}).resolve("fast")
    'smollm2'
    """

    model: str | None = None
    system: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)
    max_tokens: int | None = None
    threads: int | None = None
    keep_logs: bool = True

    def resolve(self, name: str) -> str:
        """The model that a name stands for: an alias's, or the name itself."""
        return self.aliases.get(name, name)


@dataclass(frozen=True)
class Setting:
    """A key of the file: its meaning, how a text is read as its value, and a check that raises."""

    key: str
    meaning: str
    read: Callable[[str], Any]
    check: Callable[[Any], None]


@dataclass(frozen=True)
class Found:
    """A value of the file and its line; `problem` says what is wrong with it, or is empty."""

    key: str
    value: Any
    line: int | None
    problem: str = ""


def _check_text(key: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if not isinstance(value, str) or len(value) > MAX_TEXT or not (value.strip() or key == "system"):
            raise InvalidRequest(f"{key} must be a text in quotes, not {value!r:.80}", param=key, value=value)

    return check


def _check_switch(value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"logs must be true or false, not {value!r:.80}", param="logs", value=value)


def number(text: str) -> Any:
    """A number; the text itself if it is none, which the check refuses."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


SETTINGS: dict[str, Setting] = {
    one.key: one
    for one in (
        Setting("model", "The model that is used when none is named.", str, _check_text("model")),
        Setting("system", "The system message of run and chat.", str, _check_text("system")),
        *(
            Setting(f"sampling.{name}", BY_NAME[name].meaning, number, BY_NAME[name].check)
            for name in NUMBERS
        ),
        Setting(
            "max_tokens",
            "A text of run, chat or parallel has at most so many tokens.",
            number,
            BY_NAME["max_tokens"].check,
        ),
        Setting("threads", "Threads that compute.", number, LOADING["threads"].check),
        Setting(
            "logs",
            "Keep conversations on this machine, for run -c and stretto logs.",
            lambda text: SWITCH.get(text.strip().lower(), text),
            _check_switch,
        ),
    )
}


def path() -> Path:
    """Where the file is, or would be."""
    given, folder = os.environ.get("STRETTO_CONFIG"), os.environ.get("XDG_CONFIG_HOME", "")
    try:
        if given:
            return Path(given).expanduser()
        # A relative XDG_CONFIG_HOME is to be ignored, says its specification.
        home = Path(folder) if Path(folder).is_absolute() else Path.home() / ".config"
    except RuntimeError:
        raise InvalidRequest("there is no home directory for a configuration; set STRETTO_CONFIG") from None
    return home / "stretto" / "config.toml"


def setting(key: str) -> Setting:
    """The setting with a key; raises if there is none.

    >>> setting("sampling.top_k").key, setting("alias.fast").meaning
    ('sampling.top_k', 'A name for a model.')
    """
    if key in SETTINGS:
        return SETTINGS[key]
    section, _, name = key.partition(".")
    if section == "alias" and _ALIAS.fullmatch(name):
        return Setting(key, "A name for a model.", str, _check_text(key))
    import difflib

    names = {**dict.fromkeys(SETTINGS), **{one: f"sampling.{one}" for one in NUMBERS}}
    near = difflib.get_close_matches(key, names, 1, 0.7)
    guess = f"did you mean {names[near[0]] or near[0]}? " if near else ""
    raise InvalidRequest(
        f"there is no setting {key!r:.80}; {guess}settings are {', '.join(SETTINGS)} and alias.NAME",
        param="config",
        value=key,
    )


# -- reading --


def read() -> Config:
    """The settings of the file; none if there is no file. The first wrong one raises."""
    values: dict[str, Any] = {}
    for one in read_values():
        if one.problem:
            place = "" if one.line is None else f", line {one.line}"
            raise InvalidRequest(
                f"{path()}{place}: {one.problem}. Correct it, or remove it: stretto config unset {one.key}",
                param="config",
                value=one.value,
            )
        values[one.key] = one.value
    sections: dict[str, dict[str, Any]] = {"sampling": {}, "alias": {}}
    for key, value in values.items():
        section, _, name = key.partition(".")
        if name:
            sections[section][name] = value
    return Config(
        model=values.get("model"),
        system=values.get("system"),
        aliases=sections["alias"],
        sampling=sections["sampling"],
        max_tokens=values.get("max_tokens"),
        threads=values.get("threads"),
        keep_logs=values.get("logs", True),
    )


def read_values() -> list[Found]:
    """All values of the file, also wrong ones, in its order; raises for a file that is not TOML."""
    text = _text()
    lines = {entry.key: entry.first + 1 for entry in _entries(text)}
    values = []
    for key, value in _flat(_parsed(text)).items():
        line = lines.get(key) or next((lines[one] for one in _above(key) if one in lines), None)
        try:
            setting(key).check(value)
        except InvalidRequest as error:
            values.append(Found(key, value, line, str(error)))
        else:
            values.append(Found(key, value, line))
    return values


def _above(key: str) -> list[str]:
    """The tables that a key is in, innermost first."""
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


def _text() -> str:
    """The text of the file; "" if there is none."""
    file = path()
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}", param="config") from None
    if len(data) > MAX_BYTES:
        raise InvalidRequest(
            f"{file} has more than {MAX_BYTES:,} bytes; is it the right file?", param="config"
        )
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8: {error}; save it as UTF-8", param="config") from None


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", str(error))
        if place is None:  # no error of the syntax: Python's own limits, whose place is not known
            why = "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
            raise InvalidRequest(f"{path()}: {why}. Correct it, or remove the file", param="config") from None
        line = int(place[1]) if place[1] else text.rstrip("\n").count("\n") + 1
        why = str(error).replace(place[0], "")
        raise InvalidRequest(
            f"{path()}, line {line}: not TOML: {why}. Correct that line, or remove the file", param="config"
        ) from None


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The values of a table and of those in it, by dotted keys."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{above}{name}"
        values |= _flat(value, f"{key}.") if isinstance(value, dict) and value else {key: value}
    return {key: value for key, value in values.items() if value != {}}  # a header with nothing below it


# -- writing --


def set_value(key: str, text: str) -> Any:
    """Set a value from its text, and return it; comments and everything else in the file stay.

    >>> set_value("sampling.temperature", "0.2")
    0.2
    """
    key = f"sampling.{key}" if key in NUMBERS else key
    kind = setting(key)
    value = kind.read(text)
    kind.check(value)
    before = _text()
    wanted = {**_flat(_parsed(before)), key: value}
    after = _with(before, key, _toml(value))
    try:
        is_right = _flat(_parsed(after)) == wanted
    except InvalidRequest:
        is_right = False
    if not is_right:
        line = next((one.line for one in read_values() if one.key == key), None)
        raise InvalidRequest(
            f"{path()}{'' if line is None else f', line {line}'}: this form of {key} is not edited here; "
            f"write it by hand: {key} = {_toml(value)}",
            param="config",
            value=key,
        )
    _write(after)
    return value


def unset(key: str) -> None:
    """Remove a value; also one that is wrong, from a file that has other errors."""
    text = _text()
    entries = {one.key: one for one in _entries(text)}
    entry = entries.get(key) or (entries.get(f"sampling.{key}") if key in NUMBERS else None)
    try:
        before: dict[str, Any] | None = _flat(_parsed(text))
    except InvalidRequest:
        before = None
    lines = text.split("\n")
    if entry is not None:
        del lines[entry.first : entry.last + 1]
        if before is None or _is_without(entry.key, "\n".join(lines), before):
            _write("\n".join(lines))
            return
    is_set = entry is not None or key in (before or {})
    why = "is written in a form that is not edited here; remove it by hand" if is_set else "is not set"
    raise InvalidRequest(f"{path()}: {key!r:.80} {why}", param="config", value=key)


def _is_without(key: str, text: str, before: Mapping[str, Any]) -> bool:
    """Whether a text has the values of before but for those of a key; a list of several lines may be cut."""
    try:
        after = _flat(_parsed(text))
    except InvalidRequest:
        return False
    return after == {k: v for k, v in before.items() if k != key and not k.startswith(f"{key}.")}


@dataclass(frozen=True)
class _Entry:
    """A key and its value in the text: lines counted from 0, and the table that it is below."""

    key: str
    first: int
    last: int
    header: int | None  # the line of the table's header


def _entries(text: str) -> list[_Entry]:
    """The entries of a text, line by line; also of one that is not quite TOML."""
    entries: list[_Entry] = []
    section, header, closing = "", None, ""
    for number, line in enumerate(text.split("\n")):
        if closing:  # within a text of several lines
            if closing in line:
                closing = ""
                entries[-1] = _Entry(entries[-1].key, entries[-1].first, number, entries[-1].header)
        elif match := _HEADER.fullmatch(line):
            section, header = f"{_joined(match[1])}.", number
        elif match := _ENTRY.match(line):
            entries.append(_Entry(section + _joined(match[2]), number, number, header))
            rest = line[match.end() :]
            quotes = rest[:3] if rest.startswith(('"""', "'''")) else ""
            closing = quotes if quotes and quotes not in rest[3:] else ""
    return entries


def _joined(dotted: str) -> str:
    """A dotted key without quotes and spaces."""
    return ".".join(part.strip("\"'") for part in re.findall(_PART, dotted))


def _with(text: str, key: str, value: str) -> str:
    """The text with a value for a key: in its place, below the others of its table, or in a new table."""
    lines, entries = text.split("\n"), _entries(text)
    old = next((one for one in entries if one.key == key), None)
    if old is not None:
        match = _ENTRY.match(lines[old.first])
        start = match[0] if match else f"{key} = "
        comment = _comment(lines[old.first][len(start) :]) if old.first == old.last else ""
        lines[old.first : old.last + 1] = [f"{start}{value}{comment}"]
        return "\n".join(lines)
    section, _, name = key.rpartition(".") if not key.startswith("alias.") else ("alias", "", key[6:])
    name = name if _BARE.fullmatch(name) else json.dumps(name)
    headers = {
        f"{_joined(match[1])}": number
        for number, line in enumerate(lines)
        if (match := _HEADER.fullmatch(line)) is not None
    }
    if section in headers:
        below = [one.last for one in entries if one.header == headers[section]]
        lines.insert(max(below, default=headers[section]) + 1, f"{name} = {value}")
        return "\n".join(lines)
    top = [one.last for one in entries if one.header is None]
    dotted = [one for one in entries if section and one.header is None and one.key.startswith(f"{section}.")]
    if not section or dotted:  # a table that has dotted keys cannot have a header too
        place = max(top) + 1 if top else min(headers.values(), default=len(lines) - 1)
        lines.insert(place, f"{section}.{name} = {value}" if section else f"{name} = {value}")
        return "\n".join(lines)
    start = text.rstrip("\n")
    return f"{start}\n\n[{section}]\n{name} = {value}\n".lstrip("\n")


def _comment(rest: str) -> str:
    """The comment behind a value, with the space before it; "" if there is none."""
    match = re.match(r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^"'#])*?(\s*#.*)$""", rest)
    return match[1] if match else ""


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):  # a text of JSON is one of TOML, but for this character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _write(text: str) -> None:
    """Replace the file, atomically; a link stays one, and only its owner can read a new file."""
    from stretto.weights.files import atomic_write

    file = path()
    try:
        target = file.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        with atomic_write(target) as out:
            os.fchmod(out.fileno(), mode)
            out.write((text if text.endswith("\n") or not text else f"{text}\n").encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the text is not UTF-8: {error}", param="config") from None
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be written: {error.strerror}", param="config") from None
