"""The models by name: those of Stretto's catalogue, those that were pulled, and names of your own.

Names of your own are in `stretto.json` in llm's folder, each with a model and options of `stretto.load`:

    {"vision": {"model": "~/models/smolvlm.gguf", "vision": "~/models/mmproj.gguf", "cells": 16384}}
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import llm

from stretto import StrettoError
from stretto.weights import hub

PREFIX = "stretto/"
LANGUAGE_MODEL = ("chat", "embed")  # verbs of a model that nothing is known about
PATHS = ("model", "vision")  # options that may begin with ~


@dataclass(frozen=True)
class Named:
    """A model, and the options that it is loaded with."""

    name: str
    model: str
    verbs: tuple[str, ...] = LANGUAGE_MODEL
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def id(self) -> str:
        """Its name for llm."""
        return f"{PREFIX}{self.name}"

    def load(self) -> Any:
        """The loaded model; each is loaded once."""
        return loaded(self.model, json.dumps(self.options, sort_keys=True))


def named() -> dict[str, Named]:
    """All models by name; those of your own may hide others."""
    known = hub.packaged_models()
    found = {name: Named(name, name, tuple(entry.verbs)) for name, entry in known.items()}
    for model in hub.models():
        found.setdefault(model.name, Named(model.name, model.name))
    for name, options in _readable_names().items():
        rest = {key: value for key, value in options.items() if key != "model"}
        found[name] = Named(name, options["model"], options=rest)
    return found


@lru_cache(maxsize=4)
def loaded(model: str, options: str) -> Any:
    """A loaded model; the options are JSON."""
    import stretto

    try:
        return stretto.load(model, **json.loads(options))
    except StrettoError as error:
        raise llm.ModelError(str(error)) from None


def own_file() -> Path:
    """The file with names of your own."""
    folder: Path = llm.user_dir()  # type: ignore[no-untyped-call]
    return folder / "stretto.json"


def own_names() -> dict[str, dict[str, Any]]:
    """The options of each name of your own; raises `llm.ModelError` for a file that cannot be read."""
    path = own_file()
    if not path.exists():
        return {}
    try:
        names = json.loads(path.read_text())
        return {name: _expanded(options) for name, options in names.items()}
    except (ValueError, AttributeError, TypeError, KeyError):
        raise llm.ModelError(
            f'{path} must be JSON like {{"name": {{"model": "file.gguf"}}}}; mend or remove it'
        ) from None


def _readable_names() -> dict[str, dict[str, Any]]:
    """Names of your own; a damaged file is told, and does not stop llm from running other models."""
    try:
        return own_names()
    except llm.ModelError as error:
        print(f"llm-stretto: {error}", file=sys.stderr)
        return {}


def write_own_names(names: dict[str, dict[str, Any]]) -> None:
    """Write the file with names of your own."""
    own_file().write_text(json.dumps(names, indent=2) + "\n")


def _expanded(options: dict[str, Any]) -> dict[str, Any]:
    """Options with whole paths; one without a model is a `KeyError`."""
    _ = options["model"]
    return {
        key: str(Path(value).expanduser()) if key in PATHS and str(value).startswith("~") else value
        for key, value in options.items()
    }
