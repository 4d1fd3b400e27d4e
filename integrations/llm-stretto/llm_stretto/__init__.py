"""Models that run in Stretto, for the `llm` command.

    llm -m stretto/smollm2 "What is the capital of France?"
    llm embed -m stretto/minilm -c "a cat"

names.py        which models there are, and loading them     messages.py   conversations, from llm to Stretto
answering.py    the models that answer                       embedding.py  those that make vectors
commands.py     `llm stretto`: names for models of your own
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import llm

from llm_stretto.answering import AsyncStrettoModel, StrettoModel
from llm_stretto.commands import stretto as commands
from llm_stretto.embedding import StrettoEmbedding
from llm_stretto.names import named

__all__ = ["AsyncStrettoModel", "StrettoEmbedding", "StrettoModel"]


@llm.hookimpl
def register_models(register: Callable[..., Any]) -> None:
    """The models that answer."""
    for model in named().values():
        if "chat" in model.verbs:
            register(StrettoModel(model), AsyncStrettoModel(model))


@llm.hookimpl
def register_embedding_models(register: Callable[..., Any]) -> None:
    """The models that make vectors."""
    for model in named().values():
        if "embed" in model.verbs:
            register(StrettoEmbedding(model))


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    """`llm stretto`."""
    cli.add_command(commands)
