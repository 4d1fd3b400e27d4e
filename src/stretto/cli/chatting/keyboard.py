"""The prompt of a chat: several lines, a history, completion, and a status line below."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from stretto.cli.chatting.commands import COMMANDS, SETTABLE
from stretto.cli.chatting.screen import note
from stretto.cli.chatting.session import Chat
from stretto.cli.options import aliases
from stretto.cli.output import clean
from stretto.errors import StrettoError

# What Tab completes: commands, models, and paths anywhere in a line.

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
    names = sorted({model.name for model in hub.models()} | set(hub.packaged_models()))
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


# The lines of a chat that come from a pipe, and the file that keeps the lines of a keyboard.

HISTORY_LINES = 1000
HISTORY_BYTES = 8 << 20  # of the file; older lines are not read
LINE_CHARACTERS = 16_384  # a longer text, such as a pasted file, is not remembered


def read_piped_lines() -> Iterator[str]:
    """Lines from stdin until it ends; bytes that are not UTF-8 come as surrogates."""
    for line in sys.stdin.buffer:
        text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
        if text.strip():
            yield text


class LineFile:
    """A file of lines that only its owner can read; a text of several lines is kept as one.

    It is a convenience: one that cannot be read or written is no error.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[str]:
        """The last texts, oldest first; a file that has grown is cut back to them."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - HISTORY_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []
        last = lines[-HISTORY_LINES:]
        if len(lines) > 2 * HISTORY_LINES or size > HISTORY_BYTES:
            self._write("w", last)
        return [_joined(line) for line in last]

    def append(self, text: str) -> None:
        """Add a text."""
        if text.strip() and len(text) <= LINE_CHARACTERS:
            self._write("a", [_one_line(text)])

    def _write(self, mode: str, lines: list[str]) -> None:
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _private(self._path, mode) as file:
                file.writelines(f"{line}\n" for line in lines)


def _one_line(text: str) -> str:
    r"""A text as one line.

    >>> _one_line("a\nb")
    'a\\nb'
    """
    lines = text.replace("\\", "\\\\").splitlines()
    return "\\n".join(lines)


def _joined(line: str) -> str:
    r"""The text that `_one_line` made a line of.

    >>> _joined(_one_line("a\nb\\n")) == "a\nb\\n"
    True
    """
    return "\\".join(part.replace("\\n", "\n") for part in line.split("\\\\"))


def _private(path: Path, mode: str) -> IO[str]:
    """Open a file that only its owner can read, created with that mode."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600)

    file = open(path, mode, encoding="utf-8", errors="replace", opener=opener)  # noqa: SIM115
    os.fchmod(file.fileno(), 0o600)
    return file


STYLE = Style.from_dict(
    {
        "prompt": "ansigreen bold",
        "bottom-toolbar": "noreverse ansibrightblack",
        "status.much": "ansiyellow",
        "status.full": "ansired bold",
    }
)
MENU_LINES = 6


def read_typed_lines(chat: Chat, history: Path) -> Iterator[str]:
    """Messages from the terminal until Ctrl-D, or Ctrl-C twice."""
    session = _session(chat, LineFile(history))
    warned = False
    while True:
        draft, chat.draft = chat.draft, ""
        try:
            text = session.prompt(default=draft)
        except EOFError:
            return
        except KeyboardInterrupt:
            if warned:
                return
            warned = True
            note("Ctrl-C again or Ctrl-D ends the chat")
            continue
        warned = False
        if text.strip():
            yield text


def _session(chat: Chat, history: LineFile) -> PromptSession[str]:
    return PromptSession(
        [("class:prompt", "> ")],
        multiline=True,
        prompt_continuation="… ",
        history=FileHistory(history),
        completer=ChatCompleter(),
        complete_while_typing=False,
        reserve_space_for_menu=MENU_LINES,
        key_bindings=_keys(),
        bottom_toolbar=lambda: _status(chat),
        style=STYLE,
        color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
    )


def _status(chat: Chat) -> StyleAndTextTuples:
    with suppress(StrettoError):  # such as a template that refuses the conversation: the next turn says so
        pieces: StyleAndTextTuples = []
        for kind, text in chat.status():
            pieces += [("", " · " if pieces else " "), (f"class:status.{kind}", text)]
        return pieces
    return []


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        """Send the message, unless the line ends with a backslash or a completion is being chosen."""
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        """Begin a new line."""
        event.current_buffer.insert_text("\n")

    return keys


class FileHistory(History):
    """The history in a file."""

    def __init__(self, file: LineFile) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        """What was typed before, newest first."""
        return reversed(self._file.read())

    def store_string(self, string: str) -> None:
        """Add what was typed."""
        self._file.append(string)


@contextmanager
def no_echo() -> Iterator[None]:
    """Keep keys that are typed during an answer out of it; they wait for the next prompt."""
    try:
        import termios
    except ImportError:  # no terminals of this kind
        yield
        return
    number = sys.stdin.fileno()
    before: list[Any] = termios.tcgetattr(number)
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(number, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)
