"""The prompt of a command, and its model: from arguments, from stdin, or from both.

`stretto run "prompt"`, `stretto run MODEL "prompt"`, `cat notes.txt | stretto run "Summarise"`
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from pathlib import Path

from stretto.cli import config_file
from stretto.cli.first_run import default_model
from stretto.cli.generation import check_text, note
from stretto.errors import InvalidRequest, ModelError, StrettoError
from stretto.weights import hub
from stretto.weights.hub.catalogue import CATALOGUE

STDIN_PATIENCE_SECONDS = 2.0  # after which a silent pipe is mentioned


def model_and_prompt(words: Sequence[str], model: str | None) -> tuple[str | None, str | None]:
    """The model, if one is named, and the prompt if there is one among the arguments.

    Two arguments are model and prompt. One is the prompt, unless it names a model; with --model it is the
    prompt in any case.

    >>> model_and_prompt(["smollm2", "Hello"], None)
    ('smollm2', 'Hello')
    """
    if model is not None:
        if len(words) > 1:
            raise InvalidRequest(
                f"with --model one argument is left, the prompt; {len(words)} were given. "
                "A prompt of several words needs quotes"
            )
        return model, words[0] if words else None
    if len(words) > 2:
        raise InvalidRequest(
            f"there are {len(words)} arguments; a prompt of several words needs quotes, "
            'and a model comes before it: [MODEL] "PROMPT"'
        )
    if len(words) == 2:
        return check_named_model(words[0]), words[1]
    if words and names_model(words[0]):
        return config_file.read().resolve(words[0]), None
    return None, words[0] if words else None


def model_and_files(
    words: Sequence[str | None], model: str | None, usage: str, *, has_default: bool = True
) -> tuple[str, list[str]]:
    """The model and the arguments behind it, of a command that is used as in `perplexity [MODEL] TEXT`.

    The model is that of --model, or the first argument if there is one more than needed, or the default one.

    >>> model_and_files(["smollm2", "notes.txt"], None, "perplexity [MODEL] TEXT")
    ('smollm2', ['notes.txt'])
    """

    given = [word for word in words if word is not None]
    needed = usage.partition("MODEL")[2].strip("]").split()
    if len(given) == len(needed) + 1 and model is None:
        return config_file.read().resolve(given[0]), given[1:]
    if len(given) > len(needed) and config_file.read().resolve(given[0]) == model:
        return model, given[1:]
    if len(given) > len(needed):
        raise InvalidRequest(
            f"there is one model, not {given[0]} and {model}: stretto {usage}", param="model", value=model
        )
    if len(given) < len(needed):
        raise InvalidRequest(f"{needed[len(given)]} is missing: stretto {usage}; --help shows more")
    if model is None and not has_default:
        raise InvalidRequest(f"MODEL is missing: stretto {usage}; --help shows more", param="model")
    return model or default_model(), given


def check_named_model(word: str) -> str:
    """The model that `word` names, which has to be one since a prompt follows it."""

    word = config_file.read().resolve(word)
    try:
        hub.resolve(word, pull=False)
    except ModelError:
        return word
    except InvalidRequest as error:
        raise InvalidRequest(f"{error}. If it is part of the prompt, put all of it in quotes") from None
    return word


def names_model(word: str) -> bool:
    """Whether an argument that stands alone is a model: a known name, hf:…, a .gguf or a model's folder.

    What only looks like a repository, `either/or`, is a prompt: hf:org/repo says that it is a model.

    >>> names_model("smollm2"), names_model("What is the capital of France?")
    (True, False)
    """

    if (
        word.startswith("hf:")
        or word in hub.packaged_models()
        or word in CATALOGUE
        or word in config_file.read().aliases
    ):
        return True
    try:
        path = Path(word).expanduser()
        if hub.resolve(word, pull=False) != path:  # one of the store
            return True
    except RuntimeError:  # ~ and a name that is no user's
        return False
    except StrettoError:
        pass
    return _is_model(path)


def _is_model(path: Path) -> bool:
    """Whether a path leads to a model, or is one by its ending: then opening it says what is wrong."""
    try:
        if path.suffix.lower() == ".gguf":
            return path.is_file() or " " not in path.name
        return any((path / name).is_file() for name in ("config.json", "genai_config.json"))
    except (OSError, ValueError):  # too long for a path, or with a NUL in it: a text
        return False


def prompt_text(argument: str | None) -> str:
    """The prompt: the argument, or stdin if there is none or `-`."""

    if argument is not None and argument != "-":
        return check_text(argument)
    if sys.stdin is not None and sys.stdin.isatty():
        note("Type the prompt; Ctrl-D on a line of its own ends it.")
    return _stdin()


def join_prompt(argument: str | None) -> str:
    """The prompt: what a pipe or file on stdin holds, an empty line, and the argument; or either alone."""

    if argument is None or argument == "-":
        return prompt_text(argument)
    text = check_text(argument)
    if sys.stdin is None or sys.stdin.isatty():
        return text
    before = _stdin(patient=False)
    return f"{before}\n\n{text}" if before.strip() else text


def _stdin(patient: bool = True) -> str:
    """All of stdin, without the line break at its end, as a shell's `$(…)` does."""

    if sys.stdin is None:
        return ""
    if not patient and _is_silent():
        note("waiting for stdin to end, which joins the prompt; </dev/null if there is nothing")
    return check_text(sys.stdin.buffer.read().decode("utf-8", "surrogateescape")).removesuffix("\n")


def _is_silent() -> bool:
    """Whether stdin stays open and says nothing for a while: it may be inherited, and never end."""
    try:
        return not select.select([sys.stdin.buffer], [], [], STDIN_PATIENCE_SECONDS)[0]
    except (OSError, ValueError):  # no real file, or a system that cannot wait for one
        return False
