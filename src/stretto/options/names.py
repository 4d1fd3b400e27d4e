"""Names that options have in llama-cpp-python, transformers, vLLM and Ollama, and ours for them.

Errors about unknown names use it: those of `generate` and `load`, and of the server's fields.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar, cast

from stretto.errors import InvalidRequest, wrong_value
from stretto.options.generating import CHAT, GENERATE, OPTIONS, PARALLEL_OWN
from stretto.options.loading import LOAD

_OF_CALLS = {  # names of what is no option
    "options": ("sampling_params", "generation_config", "params"),
    "model": ("model_path", "model_id", "model_name", "repo_id", "pretrained_model_name_or_path", "path"),
}
SAME = {option.name: option.aka for option in (*OPTIONS, *LOAD) if option.aka} | _OF_CALLS
"""Our name, and others that mean the same."""
OURS = {other: ours for ours, others in SAME.items() for other in others}


def _read_advice(kind: str) -> dict[str, str]:
    """What to write instead of each name of other libraries; the file lists the names behind the advice."""
    table: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("advice.json").read_bytes())
    return {name: advice for advice, names in table[kind].items() for name in names.split()}


ADVICE = _read_advice("options")  # where another name is not the whole answer
CALLS = _read_advice("calls")  # names of classes and functions elsewhere, and what to call here
METHODS = _read_advice("methods")  # of a model
OF_TOKENIZERS = _read_advice("tokenizers")
_HOMES = (
    ("generate, stream and chat", GENERATE),
    ("llm.chat", CHAT),
    ("llm.parallel", PARALLEL_OWN),
    ("stretto.load", LOAD),
)


def unknown_name(name: str, known: Collection[str]) -> str:
    """The message for a name that is none of `known`: what to write instead, as far as that can be told.

    >>> unknown_name("max_new_tokens", ["max_tokens"])
    "there is no parameter 'max_new_tokens'; it is max_tokens here"
    """
    return f"there is no parameter {name!r}; {remedy(name, known) or 'there are ' + ', '.join(known)}"


def check_names(given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `InvalidRequest` for the first parameter that is not known, with what to write instead."""
    for name, value in given.items():
        if name not in known:
            raise InvalidRequest(unknown_name(name, known), param=name, value=value)


def remedy(name: str, known: Collection[str]) -> str:
    """What to write instead of a name, or "" if nothing is like it."""
    ours = OURS.get(name, name)
    if ours in known:
        return f"it is {ours} here"
    if name in ADVICE:
        return ADVICE[name]
    for home, table in _HOMES:
        if any(option.name == ours for option in table):
            return f"{ours} is an option of {home}"
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else ""


# Errors for names of other libraries where Python itself would only say "unexpected keyword argument".

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = TypeVar("Kind")


def refuse_unknown(function: Function) -> Function:
    """A decorator: unknown keywords raise `InvalidRequest` with the right name."""
    known = tuple(name for name in inspect.signature(function).parameters if name != "self")

    @wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        check_names(keywords, known)
        return function(*args, **keywords)

    return cast(Function, checked)


def refuse_unknown_fields(kind: type[Kind]) -> type[Kind]:
    """A decorator of dataclasses: unknown fields raise `InvalidRequest` with the right name."""
    setattr(kind, "__init__", refuse_unknown(kind.__init__))  # noqa: B010
    return kind


def check_model(model: object) -> None:
    """Raise unless it can be a model's name or path."""
    if not isinstance(model, (str, PathLike)) or not isinstance(fspath(model), str):
        raise wrong_value("model", model, 'a name or a path, as "smollm2" or "models/mine.gguf"')
    if model == "":
        raise InvalidRequest(
            'model is empty; give a name or a path, as "smollm2" or "models/mine.gguf"',
            param="model",
            value=model,
        )


def check_backend(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Raise for the arguments of `LLM` if they name a model, as those of other libraries' classes do."""
    named = (
        args[0]
        if args
        else next((keywords[name] for name in ("model", "model_path") if name in keywords), "")
    )
    if named and isinstance(named, (str, PathLike)):
        raise InvalidRequest(
            f"LLM takes a backend and a tokenizer; stretto.load({fspath(named)!r}) opens a model by its name",
            param="model",
            value=named,
        )


def no_attribute(owner: str, name: str, advice: dict[str, str]) -> AttributeError:
    """The error for a name that something lacks."""
    hint = f"; {advice[name]}" if name in advice else ""
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")
