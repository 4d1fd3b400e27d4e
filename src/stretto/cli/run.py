"""`stretto run`: one prompt, one answer."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import logs
from stretto.cli import options as o
from stretto.cli.first_run import default_model, first_run_note
from stretto.cli.generation import (
    ENDS,
    add_defaults,
    note,
    open_llm,
    open_media,
    say,
    template_arguments,
    wants_stats,
)
from stretto.cli.options import load_adapters, model_names
from stretto.cli.output import print_json
from stretto.cli.prompts import join_prompt, model_and_prompt
from stretto.errors import InvalidRequest, StrettoError
from stretto.options.generating import OPTIONS
from stretto.options.loading import MACHINE

if TYPE_CHECKING:
    from stretto import Grammar
    from stretto.cli.logs import SavedConversation
    from stretto.llm import LLM, Parts


# The options of constrained decoding: --schema, --grammar, --regex, --choice.

_PANEL = "Constraints"
MAX_FILE_BYTES = 16 << 20

Schema = Annotated[
    str | None,
    typer.Option(
        metavar="JSON|@FILE", help="Answer with JSON that fits this JSON schema.", rich_help_panel=_PANEL
    ),
]
Lark = Annotated[
    str | None,
    typer.Option(
        "--grammar", metavar="TEXT|@FILE", help="Answer by this Lark grammar.", rich_help_panel=_PANEL
    ),
]
Regex = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN", help="Answer with what this regular expression matches.", rich_help_panel=_PANEL
    ),
]
Choice = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Answer with one of these; repeat it.", rich_help_panel=_PANEL),
]


def constraint(
    schema: str | None, grammar: str | None, regex: str | None, choices: list[str] | None
) -> Grammar | None:
    """The grammar of an answer from the options, of which one may be given.

    >>> constraint(None, None, "[0-9]+", None).kind
    'regex'
    """
    given = {"--schema": schema, "--grammar": grammar, "--regex": regex, "--choice": choices or None}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidRequest(f"an answer has one constraint; {' and '.join(names)} were given")
    if not names:
        return None
    from stretto import Grammar

    if schema is not None:
        return Grammar.json(text_or_file("--schema", schema))
    if grammar is not None:
        return Grammar.lark(text_or_file("--grammar", grammar))
    if regex is not None:
        return Grammar.regex(regex)
    return Grammar.choices(choices or ())


def text_or_file(option: str, value: str) -> str:
    """The value of an option, or the text of the file behind an `@`."""
    if not value.startswith("@"):
        return value
    path = Path(value[1:]).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"{option}: {path} cannot be read: {why}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{option}: {path} has more than {MAX_FILE_BYTES:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{option}: {path} is not UTF-8: {error}") from None


@o.flags("run", **o.MODELS_OWN, max_tokens=o.RUN_TOKENS, repeat_guard=True)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] PROMPT",
            help="The prompt, in quotes, and a model before it. What stdin has joins the prompt, and stands "
            "before it.",
            autocompletion=model_names,
            show_default=False,
        ),
    ] = None,
    model: o.Model = None,
    goes_on: o.Continue = False,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Ask the prompt as a user would, or continue it as it is (default: --chat if the model has "
            "a chat template).",
        ),
    ] = None,
    system: o.System = None,
    template_arg: o.TemplateArg = None,
    reasoning: o.Reasoning = None,
    adapter: o.Adapter = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="FILE", help="An image before the prompt; may be repeated."),
    ] = None,
    audio: Annotated[
        list[Path] | None,
        typer.Option("--audio", metavar="FILE", help="A sound before the prompt; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object, at the end.")] = False,
    stats: o.Stats = None,
    schema: Schema = None,
    grammar: Lark = None,
    regex: Regex = None,
    choice: Choice = None,
    server: o.Server = True,
    **options: Any,
) -> None:
    """Answer one prompt, and show the text as it comes.

    Asks in the model's chat format; a model without one, or --raw, continues the text.
    One argument is the prompt, unless it is the name or path of a model; two are model and prompt.
    """

    arguments = template_arguments(template_arg)
    for name, given in (("--system", system), ("--template-arg", arguments), ("--continue", goes_on)):
        if given and chat is False:
            raise InvalidRequest(f"{name} is for a chat; with --raw the prompt is the model's whole input")
    media = open_media(image or [], audio or [], options["vision"])
    model, prompt = model_and_prompt(words or [], model)
    settings = o.select_given(options, OPTIONS)
    settings["grammar"] = constraint(schema, grammar, regex, choice)
    vision, draft = options["vision"], settings.pop("draft", None)
    text = join_prompt(prompt)
    if not text.strip() and not media:
        raise InvalidRequest("the prompt is empty")
    before = logs.last() if goes_on else None
    model = model or (before.model if before else default_model())
    parts: Parts = (*media, text)
    machine = o.select_given(options, MACHINE)
    with ExitStack() as stack:
        llm = stack.enter_context(open_llm(model, vision=vision, server=server, **machine))
        if draft is not None:
            settings["draft"] = _drafter(draft, stack, machine)
        settings["adapter"] = load_adapters(llm, adapter or [])
        settings["reasoning"] = chats = _chats(
            llm, model, chat, system is not None or bool(arguments) or goes_on
        )
        asked: list[int] | Parts | str = parts if media else text
        message, settings = add_defaults(model, system, settings, tells=chats and before is None)
        if chats:
            messages = _messages(parts, message, system is not None, before)
            asked = llm.chat_prompt(messages, template=arguments)
        answer = (
            _print(llm, asked, settings, model) if as_json else _say(llm, asked, settings, reasoning, stats)
        )
        if chats and answer.text:
            said = {"role": "assistant", "content": answer.text}
            said |= {"reasoning_content": answer.reasoning} if answer.reasoning else {}
            logs.Keeper("run", before).keep([*messages, said], model)
        if not as_json:
            first_run_note(model)


def _tell_end(reason: str, n_tokens: int) -> None:
    """Say that the text was ended by a limit that was not asked for, and how to go without it."""

    if reason == "repetition":
        note(ENDS[reason])
    elif reason == "length" and n_tokens == o.RUN_TOKENS:
        note(f"cut at {n_tokens:,} tokens; -n {4 * n_tokens} for more, -n 0 for all that the context holds")


def _chats(llm: LLM, model: str, wanted: bool | None, needs_template: bool) -> bool:
    """Whether the prompt is a message: as asked for, else if the model has a chat template."""

    if wanted is not None:
        return wanted
    if getattr(llm, "has_template", False):
        return True
    if needs_template:
        raise InvalidRequest(
            f"{model} has no chat template; --system, --template-arg and --continue are for models that chat"
        )
    if wants_stats(None):
        note(f"{model} has no chat template: it continues the text")
    return False


def _drafter(draft: str, stack: ExitStack, machine: dict[str, Any]) -> Any:
    """The value of `draft=`: the name of a drafter, or one with a model of its own."""
    from stretto import DraftModel

    if draft in ("lookup", "suffix", "mtp", "auto") or _is_head(draft):
        return draft
    return DraftModel(stack.enter_context(open_llm(draft, **machine)))


def _is_head(draft: str) -> bool:
    """Whether a path is that of an EAGLE-3 head, and not of a model."""
    from stretto.weights.folder import open_weights

    with suppress(StrettoError, OSError, ValueError):  # of anything else, loading tells what it is
        if Path(draft).exists():
            with open_weights(draft) as file:
                return file.metadata.get("general.architecture") == "eagle3"
    return False


def _say(llm: LLM, asked: Any, settings: dict[str, Any], reasoning: bool | None, stats: bool | None) -> Any:
    """Show the answer, that there is none, and its speed; return it."""

    answer = say(llm, asked, settings, show_reasoning=wants_stats(reasoning))
    if answer.nothing:
        note(answer.nothing)
    shows_facts = wants_stats(stats)
    if not (shows_facts and answer.finish_reason == "repetition"):  # the facts say it
        _tell_end(answer.finish_reason, answer.n_tokens)
    if shows_facts:
        note(str(answer))
    if stats and (placement := getattr(llm.backend, "placement", None)):
        note(str(placement))
    return answer


def _messages(
    parts: Parts, system: str | None, is_given: bool, before: SavedConversation | None
) -> list[dict[str, Any]]:
    """A system message and the question; behind those of a conversation, whose system message stays unless
    another one is given."""
    messages: list[dict[str, Any]] = [] if before is None else list(before.messages)
    if before is None or is_given:
        messages = [one for one in messages if one["role"] != "system"]
        messages = [*([] if system is None else [{"role": "system", "content": system}]), *messages]
    return [*messages, {"role": "user", "content": parts if len(parts) > 1 else parts[0]}]


def _print(llm: LLM, prompt: str | list[int] | Parts, settings: dict[str, Any], model: str) -> Any:
    result = llm.generate(prompt, **settings)
    document = {
        "text": result.text,
        "reasoning": result.reasoning,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "usage": {**vars(result.usage), "total_tokens": result.usage.total_tokens},
        "timings": {**vars(result.timings), "tokens_per_second": result.timings.tokens_per_second},
        "seed": result.seed,
        "model": model,
    }
    print_json(document)
    _tell_end(result.finish_reason, result.usage.completion_tokens)
    return result
