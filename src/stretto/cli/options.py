"""The options of commands: those of the tables of `stretto.options`, and others that several share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeVar

import typer

from stretto.cli import config_file
from stretto.errors import InvalidRequest, StrettoError
from stretto.options import generating, loading, serving
from stretto.options.option import Option, Table

if TYPE_CHECKING:
    from stretto.llm import LLM


# What a shell offers for a model: names that are here, then those that can be pulled.


def model_names(incomplete: str) -> list[str]:
    """Names of models and aliases that begin so; files are the shell's own to complete.

    >>> model_names("smollm2")
    ['smollm2', 'smollm2-1.7b']
    """
    from stretto.weights import hub
    from stretto.weights.hub.catalogue import CATALOGUE

    try:
        here = [model.name for model in hub.models()]
    except StrettoError:  # a completion has nowhere to say what is wrong with the store
        here = []
    names = dict.fromkeys((*aliases(), *here, *sorted((*hub.packaged_models(), *CATALOGUE))))
    return [name for name in names if name.startswith(incomplete)]


def aliases() -> list[str]:
    """The user's own names for models; none where the configuration file is broken."""
    try:
        return sorted(config_file.read().aliases)
    except StrettoError:
        return []


def setting_names(incomplete: str) -> list[str]:
    """Keys of the configuration file that begin so.

    >>> setting_names("th")
    ['threads']
    """
    return [key for key in (*config_file.SETTINGS, "alias.") if key.startswith(incomplete)]


Function = TypeVar("Function", bound=Callable[..., Any])

TABLES = (*generating.PARALLEL_OWN, *generating.OPTIONS, *serving.FLAGS, *loading.LOAD)
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}

DEFAULT_SHOWN = "stretto models --default"  # says which model this machine uses when none is named


def resolve_alias(name: str | None) -> str | None:
    """A model's name, or what the alias of that name stands for; an empty one is refused."""
    if name == "":
        raise InvalidRequest(
            "the name of the model is empty; without it the default model is used", param="model"
        )
    return None if name is None else config_file.read().resolve(name)


def resolve_served(model: str) -> str:
    """`[NAME=]MODEL`, with the model of an alias, which is served under the alias's name."""
    name, equals, source = model.rpartition("=")
    target = config_file.read().resolve(source)
    return model if target == source else f"{name if equals else source}={target}"


_NAMES = "A name, a path, or hf:org/repo:Q4_K_M."
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help=_NAMES,
        show_default=DEFAULT_SHOWN,
        autocompletion=model_names,
        callback=resolve_alias,
    ),
]
Name = Annotated[  # the model as first argument
    str | None,
    typer.Argument(metavar="MODEL", help="As --model.", show_default=False, autocompletion=model_names),
]
Served = Annotated[  # the models of a server
    list[str] | None, typer.Argument(metavar="[NAME=]MODEL", help="As --model.", show_default=False)
]
ServedModels = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="[NAME=]MODEL",
        help="A name, a path, or hf:org/repo:Q4_K_M; may be repeated: each is served under its name, and "
        f"loaded on first use (default: {DEFAULT_SHOWN}).",
    ),
]
ModelAndText = Annotated[  # the model, or none, and a text behind it
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] TEXT",
        help="The text, in quotes, and a model before it; without a text, or with -, stdin.",
        autocompletion=model_names,
        show_default=False,
    ),
]
NeededModel = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="MODEL", help=_NAMES, autocompletion=model_names, callback=resolve_alias
    ),
]
Adapter = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="PATH[=SCALE]",
        help="A LoRA adapter of the model, a GGUF file or a PEFT folder; may be repeated.",
    ),
]
Continue = Annotated[
    bool,
    typer.Option(
        "--continue",
        "-c",
        help="Go on with the last conversation of run or chat (stretto logs), and its model.",
    ),
]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system message.")]
TemplateArg = Annotated[
    list[str] | None,
    typer.Option(
        "--template-arg",
        metavar="NAME=VALUE",
        help="An argument of the chat template, such as enable_thinking=false (JSON, or text); "
        "may be repeated, or be one JSON object.",
    ),
]
Reasoning = Annotated[
    bool | None,
    typer.Option(
        "--reasoning/--no-reasoning",
        help="Show on stderr what the model thinks before it answers (default: in a terminal).",
    ),
]
Stats = Annotated[
    bool | None,
    typer.Option("--stats/--no-stats", help="Tell the speed on stderr (default: in a terminal)."),
]
Server = Annotated[
    bool,
    typer.Option(
        "--server/--no-server",
        help="Ask a `stretto serve` of yours that has this model loaded in the same way, if one runs; the "
        "text is the same.",
        rich_help_panel="Backend",
    ),
]

MODELS_OWN: dict[str, None] = dict.fromkeys(
    ("precision", *(one.name for one in generating.SAMPLING))
)  # defaults of run and chat, which a model may have
RUN_TOKENS = 1024  # of an answer of `stretto run`, unless another limit is given
REPACK: dict[str, bool | str] = {"auto": "auto", "yes": True, "no": False, "shared": "shared"}


def flags(command: str, **defaults: Any) -> Callable[[Function], Function]:
    """A decorator: the options of the tables that a command takes, by name, in place of its `**options`.

    `defaults` are those of the command where it has others; None for one that is the model's own, if it has
    one. A parameter that the function has itself is left as it is.
    """

    def add(function: Function) -> Function:
        known = inspect.signature(function, eval_str=True)
        own = [one for one in known.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        names = {one.name for one in own}
        added = [
            _parameter(option, defaults.get(option.name, option.default))
            for option in TABLES
            if command in option.commands.split() and option.name not in names
        ]
        signature = known.replace(parameters=[*own, *added])
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
        return function

    return add


def select_given(options: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """The options of a table among a command's: those that were given, or have a default of its own.

    >>> select_given({"top_k": 3, "top_p": None, "kv": "q8"}, generating.SAMPLING)
    {'top_k': 3}
    """
    return {one.name: options[one.name] for one in table if options.get(one.name) is not None}


def _configured_limit(value: int, is_given: bool) -> int | None:
    """The limit of tokens that was given, else that of the configuration file, else the command's own."""
    limit = value if is_given else config_file.read().max_tokens or value
    if limit < 0:
        raise InvalidRequest(
            f"--max-tokens must be 0 or more, not {limit}; 0 generates to the end of the context",
            param="max_tokens",
            value=limit,
        )
    return limit or None


@dataclass(frozen=True)
class Spelling:
    """How commands have an option whose values in Python no text can be, or which the configuration sets."""

    type: Any = None
    metavar: str | None = None
    help: str = ""
    read: Callable[[Any, bool], Any] | None = None  # from what typer read, and whether it was given


SPELLINGS = {
    "max_tokens": Spelling(
        int, None, "At most so many tokens; 0: to the end of the context.", _configured_limit
    ),
    "stop": Spelling(list[str], "TEXT", "End where this text comes; may be repeated."),
    "draft": Spelling(
        str,
        "lookup|suffix|mtp|auto|PATH|MODEL",
        "Speculative decoding, the same text in fewer passes: by n-grams of the text, of cached texts too, "
        "by the model's own layer for it (MTP), by whichever of these pays, by the EAGLE-3 head at a path, "
        "or by a small model with the same tokenizer.",
    ),
    "threads": Spelling(read=lambda value, is_given: config_file.read().threads if value is None else value),
    "repack": Spelling(
        Literal["auto", "yes", "no", "shared"],
        None,
        "Pack weights in memory, or read them from the file; auto: by free memory; shared: in a file that "
        "all processes map.",
        lambda value, is_given: REPACK.get(value, value),
    ),
    "experts": Spelling(str, "auto|cpu|N|PATTERN,…", read=lambda value, is_given: _read_experts(value)),
    "threshold": Spelling(float, None, "Keep every token at least so probable."),
    "mode": Spelling(Literal["isolated", "visible"], None, "Whether the tokens of a set see each other."),
}


def _parameter(option: Option, default: Any) -> Parameter:
    """The parameter of a command, as typer wants it."""
    spelling = SPELLINGS.get(option.name, Spelling())
    name = "--" + option.name.replace("_", "-")
    names = option.flag or (f"{name}/--no-{name[2:]}" if default is True else name)
    flag = names.split(",")[0].split("/")[0]
    kind = spelling.type or option.type
    metavar = spelling.metavar or option.unit.upper() or None
    help_text = spelling.help or option.meaning
    shown: bool | str = True
    if default is None and option.default is not None:
        shown = f"{option.default:g}" if isinstance(option.default, float) else str(option.default)
        shown += "; the model's own, if it has one"
    if option.unit == "bytes":
        kind, metavar = str, "SIZE"
        default = default if default is None else f"{default >> 20}MiB"
    elif option.choices and int in option.kinds:
        kind, metavar = str, f"N|{'|'.join(option.choices)}"
        default = default if default is None else str(default)
    elif isinstance(kind, str):
        kind = str
    elif kind == tuple[str, ...]:
        kind = list[str]
        help_text += " May be repeated."

    def read(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
        source = context.get_parameter_source(param.name or "")
        if spelling.read is not None:
            value = spelling.read(value, source is not None and source.name != "DEFAULT")
        elif option.unit == "bytes" and value is not None:
            value = size(flag, value)
        elif kind is str and int in option.kinds and value is not None:
            value = value if value in option.choices or not _is_integer(value) else int(value)
        if value is not None or default is not None:  # else it is the model's own
            option.check(value, flag)
        return value

    if kind == list[str]:
        default = []
    info = typer.Option(
        *names.split(","),
        help=help_text,
        metavar=metavar,
        show_default=shown if default != [] else False,
        rich_help_panel=option.panel or None,
        callback=read,
    )
    annotation: Any = Annotated[Optional[kind] if default is None else kind, info]  # noqa: UP045
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _read_experts(text: str | None) -> str | int | list[str] | None:
    """A word, a number of layers, or patterns with commas between them."""
    if text is None or text in ("auto", "cpu", ""):
        return text
    return int(text) if text.isdecimal() else text.split(",")


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def size(name: str, text: str) -> int:
    """Bytes from `8GB`, `512MiB` or `1000000`.

    >>> size("--memory", "2GB")
    2000000000
    """
    cleaned = text.strip().upper().removesuffix("B")
    digits = cleaned.rstrip("KMGTI ")
    unit = cleaned[len(digits) :].strip()
    try:
        number = float(digits)
    except ValueError:
        number = -1.0
    if unit not in UNITS or not 0 <= number < 1e15:
        raise InvalidRequest(f"{name} takes a size like 8GB or 512MiB, not {text!r}")
    return int(number * UNITS[unit])


# Adapters on the command line: PATH, or PATH=SCALE.


def read_scaled(text: str) -> tuple[str, float]:
    """The path of an adapter and its scale.

    >>> read_scaled("style.gguf=0.7")
    ('style.gguf', 0.7)
    """
    path, equals, number = text.rpartition("=")
    if not equals or Path(text).exists():
        return text, 1.0
    try:
        scale = float(number)
    except ValueError:
        scale = float("nan")
    if not path or not isfinite(scale):
        raise InvalidRequest(f"--adapter takes PATH or PATH=SCALE, as style.gguf=0.7, not {text!r}")
    return path, scale


def load_adapters(llm: LLM, given: Sequence[str]) -> dict[str, float]:
    """Load adapters; the names and scales that requests have to give for all of them."""
    mix: dict[str, float] = {}
    for number, text in enumerate(given, 1):
        path, scale = read_scaled(text)
        mix[llm.load_adapter(f"adapter-{number}", path).name] = scale
    return mix
