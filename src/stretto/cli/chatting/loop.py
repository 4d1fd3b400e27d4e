"""The loop of a chat: lines in, turns and commands out. Errors are shown, and the chat goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stretto.cli.chatting import room
from stretto.cli.chatting.commands import Leave, run_command
from stretto.cli.chatting.notes import error, note, pairs
from stretto.cli.chatting.session import Chat
from stretto.cli.generation import check_text
from stretto.errors import ContextOverflow, StrettoError

# Not a path: those have a second slash or a dot.
_COMMAND = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)


def run(chat: Chat, lines: Iterable[str]) -> None:
    """Handle lines until one of them ends the chat."""
    for line in lines:
        if not take(chat, line):
            return


def take(chat: Chat, line: str) -> bool:
    """Handle a line; False if it ends the chat."""
    try:
        _handle(chat, check_text(line.strip()))
    except Leave:
        return False
    except KeyboardInterrupt:
        note("stopped before there was an answer; that turn is dropped")
    except BrokenPipeError:  # the reader has gone
        raise
    except ContextOverflow as problem:
        chat.n_failed += 1
        _offer(chat, room.explain(chat, problem.n_tokens or 0))
    except Exception as problem:
        chat.n_failed += 1
        kind = "" if isinstance(problem, StrettoError) else f"{type(problem).__name__}: "
        error(kind + str(problem))
    return True


def _handle(chat: Chat, text: str) -> None:
    if text.startswith("//"):
        _say(chat, text[1:])
    elif match := _COMMAND.fullmatch(text):
        before = chat.conversation.head
        run_command(chat, match[1].lower(), match[2] or "")
        if chat.waiting and chat.conversation.head is not before:  # there may be room now
            chat.draft, chat.waiting = chat.waiting, ""
    elif text:
        _say(chat, text)


def _say(chat: Chat, text: str) -> None:
    chat.waiting = ""
    chat.say(text)
    if chat.is_full:
        _offer(chat, "the context is full, so the answer ends here")


def _offer(chat: Chat, why: str) -> None:
    """Say that the context is full, and what can be done."""
    found = room.offers(chat)
    error(f"{why}. What can be done:" if found else why)
    if found:
        pairs(found)
    if found and chat.waiting:
        note("your message waits, and comes back to the prompt when there may be room")
