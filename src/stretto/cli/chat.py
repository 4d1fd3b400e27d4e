"""`stretto chat`: a conversation in the terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.cli import logs
from stretto.cli import options as o
from stretto.cli.chatting import commands
from stretto.cli.chatting.commands import Leave, run_command
from stretto.cli.chatting.conversation import Conversation, load_chat
from stretto.cli.chatting.screen import error, new_screen, note, pairs
from stretto.cli.chatting.session import Chat
from stretto.cli.first_run import first_run_note
from stretto.cli.generation import add_defaults, check_text, open_llm, template_arguments, wants_stats
from stretto.cli.output import clean
from stretto.cli.prompts import model_and_files
from stretto.errors import ContextOverflow, InvalidRequest, StrettoError
from stretto.options.generating import OPTIONS
from stretto.options.loading import MACHINE


@o.flags("chat", **o.MODELS_OWN, max_tokens=0, repeat_guard=True)
def chat(
    name: o.Name = None,
    model: o.Model = None,
    system: o.System = None,
    goes_on: o.Continue = False,
    load: Annotated[
        Path | None, typer.Option("--load", metavar="FILE", help="Take up a chat that /save has written.")
    ] = None,
    template_arg: o.TemplateArg = None,
    reasoning: o.Reasoning = None,
    stats: o.Stats = None,
    server: o.Server = True,
    **options: Any,
) -> None:
    """Chat with a model; /help lists the commands.

    Without a terminal each line of stdin is a turn, answers are plain text, and an error in any of them makes
    the exit code 2.
    """
    from stretto.cli.chatting.keyboard import read_piped_lines

    before = logs.last() if goes_on else None
    if before is not None and load is not None:
        raise InvalidRequest("--continue and --load each name a conversation; give one of them")
    if before is not None and name is None:
        model = model or before.model
    model, _ = model_and_files((name,), model, "chat [MODEL]")
    arguments = template_arguments(template_arg)
    conversation = Conversation() if load is None else load_chat(load)
    if before is not None:
        conversation.add_messages(before.messages)
    settings = o.select_given(options, OPTIONS)
    guard = settings.pop("repeat_guard")
    is_new = load is None and before is None
    message, settings = add_defaults(model, system, settings, tells=is_new)
    if system is not None or is_new:
        conversation.system = message
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    machine: dict[str, Any] = {**o.select_given(options, MACHINE), "server": server, "verb": "chat"}
    with open_llm(model, vision=options["vision"], **machine) as llm:
        session = Chat(
            llm,
            model,
            conversation,
            settings,
            stats=bool(stats) if interactive else wants_stats(stats),  # a terminal has the status line
            arguments=arguments,
            screen=new_screen(interactive, wants_stats(reasoning)),
            guard=guard,
            open_model=lambda other: open_llm(other, **machine),
            keeper=logs.Keeper("chat", before, conversation.roots[0] if conversation.roots else None),
        )
        with session:
            if interactive:
                if before is not None:
                    n = before.n_turns
                    note(f"going on after {n} turn{'' if n == 1 else 's'}: {clean(before.title)[:60]}")
                _talk(session)
            else:
                run(session, read_piped_lines())
    if session.n_failed and not interactive:
        raise typer.Exit(2)


def _talk(session: Any) -> None:
    """Chat at the keyboard."""
    from stretto.cli.chatting.keyboard import no_echo, read_typed_lines
    from stretto.weights.hub import Store

    llm = session.llm
    note(
        f"{clean(session.model)}, backend {llm.backend.name}, context {llm.context_length:,}; /help for help"
    )
    first_run_note(session.model)
    session.quiet, session.tells_ends = no_echo, True
    run(session, read_typed_lines(session, Store.default().home / "chat_history"))


# The loop of a chat: lines in, turns and commands out. Errors are shown, and the chat goes on.

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
        _offer(chat, commands.explain(chat, problem.n_tokens or 0))
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
    found = commands.offers(chat)
    error(f"{why}. What can be done:" if found else why)
    if found:
        pairs(found)
    if found and chat.waiting:
        note("your message waits, and comes back to the prompt when there may be room")
