"""The tables as docstrings, signatures and page docs/reference/options.md (`python -m stretto.options`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from inspect import Parameter
from textwrap import fill, indent
from typing import Any, TypeVar

from stretto.options.generating import (
    BRANCHING,
    CONTEXT,
    CONTROL,
    LIMITS,
    OPTIONS,
    PARALLEL_OWN,
    SAMPLING,
    TEMPLATE,
)
from stretto.options.loading import LOAD
from stretto.options.option import Option, Table

Function = TypeVar("Function", bound=Callable[..., Any])

WIDTH = 96  # of a docstring's lines
HEAD = """# Options

Every option by name, with its type, default and meaning: the same that `help(stretto.LLM.generate)` shows,
and the server's `/docs` for the fields that it shares. Unknown names raise `InvalidRequest`; the error for a
name of llama-cpp-python, transformers, vLLM or Ollama says what it is called here.
[What can be combined](combinations.md) lists options that exclude each other.

The options of a call are for all its prompts; `generate(prompts, progress=True)` shows a bar for them.
Prompts with options of their own are streams, which run in the same steps
([examples/many_requests.py](../../examples/many_requests.py)).

```python
import stretto

llm = stretto.load("smollm2")
requests = [("The sea is", {"temperature": 0}), ("The moon is", {"seed": 3, "stop": "."})]
streams = [llm.stream(prompt, max_tokens=16, **options) for prompt, options in requests]
texts = [stream.result.text for stream in streams]
llm.close()
```

`scripts/doc_reference.py` writes this page.
"""
SECTIONS = (
    (
        "`generate`, `stream`, `chat`, `step`: sampling",
        "Defaults may be the model's own (`llm.defaults`: a folder's `generation_config.json`, a GGUF file's "
        "`general.sampling.…`). `seq.step` and `llm.step` take these only.",
        SAMPLING,
    ),
    (
        "`generate`, `stream`, `chat`: where the text ends",
        "`repeat_guard` is on in `stretto run`, `chat` and `serve`, and off in Python. It looks at every "
        "16th token, which costs about a microsecond a token. Every loop, batch, draft and stream ends a "
        "text at the same token, and each text of `n` and each beam has a guard of its own. Neither the "
        "prompt nor the text that a call continues counts. With a grammar, tokens that the model chose "
        "count, and forced ones do not.",
        LIMITS,
    ),
    ("`generate`, `stream`, `chat`: control", "", CONTROL),
    ("`generate`, `chat`: several texts", "", BRANCHING),
    ("`generate`, `stream`, `chat`: context, drafts, adapters", "", CONTEXT),
    (
        "`chat`: the template",
        "Besides: `stream`, `tools`, `tool_choice` and `parallel_tool_calls`.",
        (TEMPLATE,),
    ),
    ("`parallel`", "Besides: those above that end a text, and control it.", PARALLEL_OWN),
    ("`stretto.load`", "", LOAD),
)


def documented(table: Table, title: str = "Options") -> Callable[[Function], Function]:
    """A decorator: adds a table of options to a docstring, and to the signature that `help` shows."""

    def add(function: Function) -> Function:
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{docstring_of(table, title)}"
        function.__signature__ = _signature(function, table)  # type: ignore[attr-defined]
        return function

    return add


def docstring_of(table: Table, title: str = "Options") -> str:
    """The section of a docstring that lists options."""
    return "\n".join([f"{title}:", *map(_described, table)])


@cache  # several functions share their options
def _described(option: Option) -> str:
    meaning = indent(fill(option.text, WIDTH - 4, break_on_hyphens=False), " " * 4)
    return indent(f"{option.heading}\n{meaning}", " " * 4)


def _signature(function: Callable[..., Any], table: Table) -> inspect.Signature:
    """The signature with all options by name, in place of `**keywords`."""
    signature = inspect.signature(function)
    known = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    named = {one.name for one in known}
    options = [
        Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default)
        for option in table
        if option.name not in named
    ]
    return signature.replace(parameters=[*known, *options])


def page() -> str:
    """The text of docs/reference/options.md."""
    parts = [HEAD]
    for title, note, table in SECTIONS:
        parts.append("\n".join(filter(None, (f"## {title}", note, "" if note else None))))
        parts.append(_markdown(table))
    return "\n".join(parts)


def _markdown(table: Table) -> str:
    rows = ["", "| option | type | default | meaning |", "|---|---|---|---|"]
    for option in table:
        kind = option.shown_type.replace("|", "\\|")
        meaning = option.text.replace("|", "\\|")
        rows.append(f"| `{option.name}` | `{kind}` | `{option.default!r}` | {meaning} |")
    return "\n".join(rows) + "\n"


MEANINGS = {option.name: option.text for option in OPTIONS}
"""The meaning of each option of `generate` and `chat`, by name."""
