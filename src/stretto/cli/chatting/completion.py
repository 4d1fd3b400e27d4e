"""What Tab completes: commands, models, and paths anywhere in a line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from stretto.cli.chatting.commands import COMMANDS, SETTABLE
from stretto.cli.completion import aliases
from stretto.cli.output import clean

MAX_SHOWN = 200
_ARGUMENT = re.compile(r"/(image|save|load|model)\s+(.*)", re.DOTALL)
_LAST_WORD = re.compile(r"(?:\\.|[^\s\\\"'])*\Z")


class ChatCompleter(Completer):
    """Completes what stands before the cursor."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """The completions, best first."""
        text = document.text_before_cursor
        if match := _ARGUMENT.fullmatch(text):
            found = models(match[2]) if match[1] == "model" else paths(match[2])
        elif match := re.fullmatch(r"/set\s+(?:--save\s+)?(\w*)", text):
            found = [(len(match[1]), name) for name in SETTABLE if name.startswith(match[1])]
        elif re.fullmatch(r"/[a-z]*", text):
            found = [*commands(text), *(paths(text) if len(text) > 1 else ())]
        else:
            word = _LAST_WORD.search(text)
            plain = re.sub(r"\\(.)", r"\1", word[0]) if word else ""
            found = [(start, re.sub(r"([\s\\\"'])", r"\\\1", name)) for start, name in paths(plain)]
            # The part that is replaced is as long as it was typed.
            typed = len(word[0].rpartition("/")[2]) if word else 0
            found = [(typed, name) for _, name in found]
        for length, name in found:
            yield Completion(name, start_position=-length, display=clean(name))


Found = Iterable[tuple[int, str]]  # how many characters are replaced, and by what


def commands(text: str) -> Found:
    """The commands that begin with a text."""
    return [(len(text), f"/{name}") for name in COMMANDS if f"/{name}".startswith(text)]


def models(text: str) -> Found:
    """The models that can chat and begin with a text, or paths if it is one."""
    from stretto.weights import hub

    if text.startswith((".", "/", "~")):
        return paths(text)
    names = sorted({model.name for model in hub.models()} | set(hub.known()))
    fitting = [name for name in names if name.startswith(text)]
    return [
        *((len(text), name) for name in aliases() if name.startswith(text)),
        *((len(text), name) for name in fitting if hub.can(name, "chat")),
    ]


def paths(text: str) -> Found:
    """The files and folders whose path begins with a text; hidden ones if it asks for them."""
    if not text:
        return []
    folder, _, start = text.rpartition("/")
    try:
        place = Path(f"{folder}/" if folder or text.startswith("/") else ".").expanduser()
        with os.scandir(place) as entries:
            names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in entries)
    except (OSError, ValueError, RuntimeError):  # no such folder, a null character, no home
        return []
    fitting = [name for name in names if name.startswith(start) and (start or not name.startswith("."))]
    return [(len(start), name) for name in fitting[:MAX_SHOWN]]
