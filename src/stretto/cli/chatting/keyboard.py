"""The prompt of a chat: several lines, a history, completion, and a status line below."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from stretto.cli.chatting.completion import ChatCompleter
from stretto.cli.chatting.notes import note
from stretto.cli.chatting.session import Chat
from stretto.cli.lines import LineFile
from stretto.errors import StrettoError

STYLE = Style.from_dict(
    {
        "prompt": "ansigreen bold",
        "bottom-toolbar": "noreverse ansibrightblack",
        "status.much": "ansiyellow",
        "status.full": "ansired bold",
    }
)
MENU_LINES = 6


def typed(chat: Chat, history: Path) -> Iterator[str]:
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
