"""The options that `stretto run` and `stretto chat` share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from stretto.cli import config_file
from stretto.cli.completion import model_names
from stretto.errors import InvalidRequest
from stretto.options.generating import BY_NAME

_SAMPLING = "Sampling"
_LIMITS = "Limits"
_MACHINE = "Backend"

DEFAULT_SHOWN = "stretto models --default"  # says which model this machine uses when none is named


def aliased(name: str | None) -> str | None:
    """A model's name, or what the alias of that name stands for; an empty one is refused."""
    if name == "":
        raise InvalidRequest(
            "the name of the model is empty; without it the default model is used", param="model"
        )
    return None if name is None else config_file.read().named(name)


def served(model: str) -> str:
    """`[NAME=]MODEL`, with the model of an alias, which is served under the alias's name."""
    name, equals, source = model.rpartition("=")
    target = config_file.read().named(source)
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
        callback=aliased,
    ),
]
Name = Annotated[  # the model as first argument
    str | None,
    typer.Argument(metavar="MODEL", help="As --model.", show_default=False, autocompletion=model_names),
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
    typer.Option("--model", "-m", metavar="MODEL", help=_NAMES, autocompletion=model_names, callback=aliased),
]
Vision = Annotated[
    str | None,
    typer.Option("--vision", metavar="FILE", help="The mmproj file that lets the model see images."),
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

_OWN = "; the model's own, if it has one"
Temperature = Annotated[
    float | None,
    typer.Option(
        help="0 always takes the most probable token.", show_default=f"0.8{_OWN}", rich_help_panel=_SAMPLING
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        help="Only the k most probable; 0 for all.", show_default=f"40{_OWN}", rich_help_panel=_SAMPLING
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Only the fewest that reach this probability together.",
        show_default=f"0.95{_OWN}",
        rich_help_panel=_SAMPLING,
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        help="Only those with this share of the best one's probability.",
        show_default=f"0.05{_OWN}",
        rich_help_panel=_SAMPLING,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(help="For the same tokens again (default: a fresh one).", rich_help_panel=_SAMPLING),
]

RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        help="Above 1: tokens of the prompt and the answer become less probable.",
        show_default=f"1{_OWN}",
        rich_help_panel=_SAMPLING,
    ),
]
PresencePenalty = Annotated[
    float | None,
    typer.Option(
        help="Subtracted from the logits of tokens that the answer has.",
        show_default=f"0{_OWN}",
        rich_help_panel=_SAMPLING,
    ),
]
FrequencyPenalty = Annotated[
    float | None,
    typer.Option(
        help="The same, for each time that it has them.",
        show_default=f"0{_OWN}",
        rich_help_panel=_SAMPLING,
    ),
]

RUN_TOKENS = 1024  # of an answer of `stretto run`, unless another limit is given


def configured_limit(context: typer.Context, param: typer.CallbackParam, value: int) -> int:
    """The limit of tokens that was given, else that of the configuration file, else the command's own."""
    source = context.get_parameter_source(param.name or "")
    is_given = source is not None and source.name != "DEFAULT"
    limit = value if is_given else config_file.read().max_tokens or value
    if limit < 0:
        raise InvalidRequest(
            f"--max-tokens must be 0 or more, not {limit}; 0 generates to the end of the context",
            param="max_tokens",
            value=limit,
        )
    return limit


MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        "-n",
        help="At most so many tokens; 0: to the end of the context.",
        rich_help_panel=_LIMITS,
        callback=configured_limit,
    ),
]
RepeatGuard = Annotated[
    bool,
    typer.Option(
        "--repeat-guard/--no-repeat-guard",
        help="Stop an answer whose last 400 tokens or more are one passage, four times at least.",
        rich_help_panel=_LIMITS,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="End where this text comes; may be repeated.", rich_help_panel=_LIMITS),
]
Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="End after so long.", rich_help_panel=_LIMITS)
]


def read_cells(text: str | int) -> int | str:
    """A number of cells, or "auto".

    >>> read_cells("8192"), read_cells("auto")
    (8192, 'auto')
    """
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number of tokens nor 'auto'") from None


Cells = Annotated[
    Any,  # int | str
    typer.Option(
        parser=read_cells,
        metavar="N|auto",
        help="The size of the cache in tokens; auto: what is free on a GPU.",
        rich_help_panel=_MACHINE,
    ),
]
Kv = Annotated[
    Literal["f16", "q8", "f32", "bf16", "fp8"],
    typer.Option(
        help="Type of the KV cache; q8 takes half the memory. bf16 and fp8 are for GPUs.",
        rich_help_panel=_MACHINE,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        metavar="lookup|MODEL",
        help="Speculative decoding, the same text in fewer passes: by n-grams of the text, or by a small "
        "model with the same tokenizer.",
        rich_help_panel=_MACHINE,
    ),
]
DraftBranches = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Draft up to so many continuations, verified as a tree in one pass (default: one).",
        rich_help_panel=_MACHINE,
    ),
]
Backend = Annotated[
    str,
    typer.Option(metavar="NAME", help="What runs the model: native, torch, onnx …", rich_help_panel=_MACHINE),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Where it runs: cpu, cuda …; auto: where it is fastest, by measurement.",
        rich_help_panel=_MACHINE,
    ),
]


def configured_threads(given: int | None) -> int | None:
    """The threads that were asked for, or those of the configuration file."""
    return config_file.read().threads if given is None else given


Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        help="How many threads (default: as suits the machine).",
        rich_help_panel=_MACHINE,
        callback=configured_threads,
    ),
]
Repack = Annotated[
    Literal["auto", "yes", "no", "shared"],
    typer.Option(
        help="Pack weights in memory, or read them from the file; auto: by free memory; shared: in a file "
        "that all processes map.",
        rich_help_panel=_MACHINE,
    ),
]
REPACK: dict[str, bool | str] = {"auto": "auto", "yes": True, "no": False, "shared": "shared"}
Server = Annotated[
    bool,
    typer.Option(
        "--server/--no-server",
        help="Ask a `stretto serve` of yours that has this model loaded in the same way, if one runs; the "
        "text is the same.",
        rich_help_panel=_MACHINE,
    ),
]
Precision = Annotated[
    Literal["standard", "high"],
    typer.Option(help="Activations in 8 bits, or in 16: slower, exacter.", rich_help_panel=_MACHINE),
]
OwnPrecision = Annotated[
    Literal["standard", "high"] | None,
    typer.Option(
        "--precision",
        help="Activations in 8 bits, or in 16: slower, exacter.",
        show_default=f"standard{_OWN}",
        rich_help_panel=_MACHINE,
    ),
]


def named(**options: float | None) -> dict[str, Any]:
    """The options that were given, checked before a model is loaded; others are the model's, or the usual."""
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        BY_NAME[name].check(value)
    return given
