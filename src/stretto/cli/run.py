"""`stretto run`: one prompt, one answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options as o
from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from stretto.llm import LLM, Parts


def run(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; without it, or with -, stdin.")] = None,
    model: o.Model = o.DEFAULT_MODEL,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="Ask the prompt as a user would, or continue it as it is.")
    ] = False,
    system: o.System = None,
    template_arg: o.TemplateArg = None,
    reasoning: o.Reasoning = None,
    vision: o.Vision = None,
    adapter: o.Adapter = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="FILE", help="An image before the prompt; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object, at the end.")] = False,
    stats: o.Stats = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    seed: o.Seed = None,
    max_tokens: o.MaxTokens = None,
    stop: o.Stop = None,
    timeout: o.Timeout = None,
    cells: o.Cells = 8192,
    backend: o.Backend = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    precision: o.Precision = "standard",
    repack: o.Repack = "auto",
) -> None:
    """Answer one prompt, and show the text as it comes.

    The prompt is continued as it is; --chat asks it in the model's own chat format instead.
    """
    from stretto.cli.adapters import load_adapters
    from stretto.cli.generation import note, open_images, open_llm, say, template_arguments, wants_stats

    arguments = template_arguments(template_arg)
    if system is not None and not chat:
        raise InvalidRequest("--system is for --chat; without it the prompt is the model's whole input")
    if arguments and not chat:
        raise InvalidRequest("--template-arg is for --chat; without it no chat template is used")
    images = open_images(image or [], vision)
    text = prompt_text(prompt)
    settings: dict[str, Any] = {
        **o.named(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
        "seed": seed,
        "max_tokens": max_tokens,
        "stop": stop or (),
        "timeout": timeout,
        "reasoning": chat,
    }
    with open_llm(
        model,
        backend=backend,
        device=device,
        threads=threads,
        cells=cells,
        precision=precision,
        repack=o.REPACK[repack],
        vision=vision,
    ) as llm:
        settings["adapter"] = load_adapters(llm, adapter or [])
        parts: Parts = (*images, text)
        asked: str | list[int] | Parts = parts if images else text
        if chat:
            asked = _asked(llm, parts, system, arguments)
        if as_json:
            _print(llm, asked, settings, model)
        else:
            answer = say(llm, asked, settings, show_reasoning=wants_stats(reasoning))
            if wants_stats(stats):
                note(str(answer))
                if placement := getattr(llm.backend, "placement", None):
                    note(str(placement))


def _asked(llm: LLM, parts: Parts, system: str | None, arguments: dict[str, Any]) -> list[int]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts if len(parts) > 1 else parts[0]}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return llm.chat_prompt(messages, template=arguments)


def _print(llm: LLM, prompt: str | list[int] | Parts, settings: dict[str, Any], model: str) -> None:
    from dataclasses import asdict

    from stretto.cli.output import print_json

    result = llm.generate(prompt, **settings)
    document = {
        "text": result.text,
        "reasoning": result.reasoning,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "usage": {**asdict(result.usage), "total_tokens": result.usage.total_tokens},
        "timings": {**asdict(result.timings), "tokens_per_second": result.timings.tokens_per_second},
        "seed": result.seed,
        "model": model,
    }
    print_json(document)


def prompt_text(argument: str | None) -> str:
    """The prompt. From stdin its last line break is removed, as a shell's `$(…)` does."""
    from stretto.cli.generation import check_text, note

    if argument is not None and argument != "-":
        return check_text(argument)
    if sys.stdin.isatty():
        note("Type the prompt; Ctrl-D on a line of its own ends it.")
    text = check_text(sys.stdin.buffer.read().decode("utf-8", "surrogateescape"))
    return text.removesuffix("\n")
