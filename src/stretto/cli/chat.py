"""`stretto chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.cli import options as o
from stretto.cli.output import clean
from stretto.errors import InvalidRequest


def chat(
    name: o.Name = None,
    model: o.Model = None,
    system: o.System = None,
    vision: o.Vision = None,
    goes_on: o.Continue = False,
    load: Annotated[
        Path | None, typer.Option("--load", metavar="FILE", help="Take up a chat that /save has written.")
    ] = None,
    template_arg: o.TemplateArg = None,
    reasoning: o.Reasoning = None,
    stats: o.Stats = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    seed: o.Seed = None,
    max_tokens: o.MaxTokens = 0,
    stop: o.Stop = None,
    timeout: o.Timeout = None,
    repeat_guard: o.RepeatGuard = True,
    cells: o.Cells = 8192,
    backend: o.Backend = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    precision: o.OwnPrecision = None,
    repack: o.Repack = "auto",
    server: o.Server = True,
) -> None:
    """Chat with a model; /help lists the commands.

    Without a terminal each line of stdin is a turn, answers are plain text, and an error in any of them makes
    the exit code 2.
    """
    from stretto.cli import kept
    from stretto.cli.chatting import files, loop
    from stretto.cli.chatting.notes import note
    from stretto.cli.chatting.screen import new_screen
    from stretto.cli.chatting.session import Chat
    from stretto.cli.conversation import Conversation
    from stretto.cli.generation import open_llm, template_arguments, wants_stats, with_defaults
    from stretto.cli.lines import piped
    from stretto.cli.prompts import model_and_files

    before = kept.last() if goes_on else None
    if before is not None and load is not None:
        raise InvalidRequest("--continue and --load each name a conversation; give one of them")
    if before is not None and name is None:
        model = model or before.model
    model, _ = model_and_files((name,), model, "chat [MODEL]")
    arguments = template_arguments(template_arg)
    conversation = Conversation() if load is None else files.load(load)
    if before is not None:
        conversation.add_messages(before.messages)
    settings: dict[str, Any] = {
        **o.named(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
        **o.named(seed=seed, timeout=timeout),
        "max_tokens": max_tokens or None,
        "stop": stop or (),
    }
    is_new = load is None and before is None
    message, settings = with_defaults(model, system, settings, tells=is_new)
    if system is not None or is_new:
        conversation.system = message
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    open_model = partial(
        open_llm,
        backend=backend,
        device=device,
        threads=threads,
        cells=cells,
        precision=precision,
        repack=o.REPACK[repack],
        server=server,
        verb="chat",
    )
    with open_model(model, vision=vision) as llm:
        session = Chat(
            llm,
            model,
            conversation,
            settings,
            stats=bool(stats) if interactive else wants_stats(stats),  # a terminal has the status line
            arguments=arguments,
            screen=new_screen(interactive, wants_stats(reasoning)),
            guard=repeat_guard,
            open_model=open_model,
            keeper=kept.Keeper("chat", before, conversation.roots[0] if conversation.roots else None),
        )
        with session:
            if interactive:
                if before is not None:
                    n = before.n_turns
                    note(f"going on after {n} turn{'' if n == 1 else 's'}: {clean(before.title)[:60]}")
                _talk(session)
            else:
                loop.run(session, piped())
    if session.n_failed and not interactive:
        raise typer.Exit(2)


def _talk(session: Any) -> None:
    """Chat at the keyboard."""
    from stretto.cli.chatting import loop
    from stretto.cli.chatting.keyboard import no_echo, typed
    from stretto.cli.chatting.notes import note
    from stretto.cli.first_run import first_run_note
    from stretto.weights.hub import Store

    llm = session.llm
    note(
        f"{clean(session.model)}, backend {llm.backend.name}, context {llm.context_length:,}; /help for help"
    )
    first_run_note(session.model)
    session.quiet, session.tells_ends = no_echo, True
    loop.run(session, typed(session, Store.default().home / "chat_history"))
