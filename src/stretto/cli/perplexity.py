"""`stretto perplexity`: how well a model predicts a text, and how near it is to another file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options as o
from stretto.cli.first_run import default_model
from stretto.cli.generation import note, open_llm
from stretto.cli.options import load_adapters
from stretto.cli.output import clean, console, print_json, progress
from stretto.cli.prompts import model_and_files, model_and_prompt, prompt_text
from stretto.errors import InvalidRequest, Unsupported
from stretto.options.loading import MACHINE

if TYPE_CHECKING:
    from stretto.evaluation import Estimate, PerplexityReport


MAX_TEXT_BYTES = 1 << 30

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document, with the figures of each window.")]


@o.flags("perplexity")
def perplexity(
    name: o.Name = None,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A UTF-8 text file.")] = None,
    model: o.Model = None,
    window: Annotated[int, typer.Option(min=4, max=1 << 20, help="Tokens that are read together.")] = 512,
    stride: Annotated[
        int | None,
        typer.Option(min=1, help="Overlapping windows, so many tokens apart; all tokens are scored."),
    ] = None,
    chunks: Annotated[int | None, typer.Option(min=1, help="At most so many windows.")] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help='Compare with this model; "reference": the same file, computed exactly.',
            callback=o.resolve_alias,
        ),
    ] = None,
    reference_backend: Annotated[str, typer.Option(help="What runs the other model.")] = "auto",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Write a plot of the windows.")
    ] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Measure the perplexity of a text by llama.cpp's windows, or by overlapping ones (--stride).

    With --reference also the KL divergence from that model to this one, and how often both find the same
    token most probable. Intervals are of 95 %, over windows.
    """
    from contextlib import ExitStack

    from stretto import load
    from stretto.cli.pull import pull_missing
    from stretto.evaluation import perplexity as measure
    from stretto.evaluation import plot_windows

    model, (file,) = model_and_files((name, text), model, "perplexity [MODEL] TEXT")
    path = Path(file)
    content = read_text(path)
    pull_missing(model)
    machine = {**o.select_given(options, MACHINE), "cells": max(window, 512)}
    with ExitStack() as stack:
        llm = stack.enter_context(load(model, **machine))
        check_generates(llm, model)
        other = None
        if reference is not None:
            exactly = reference == "reference"
            how = "reference" if exactly else reference_backend
            other_name = model if exactly else reference
            pull_missing(other_name)
            other = stack.enter_context(load(other_name, **{**machine, "backend": how}))
            check_generates(other, other_name)
        report = measure(
            llm,
            content,
            window=window,
            stride=stride,
            chunks=chunks,
            reference=other,
            progress=stack.enter_context(progress(path.name)),
        )
    if plot is not None:
        plot.write_text(plot_windows(report, f"{Path(model).name} on {path.name}"), encoding="utf-8")
    if as_json:
        print_json({"model": model, "text": file, "reference": reference, **report.as_dict()})
    else:
        show(report)


def read_text(path: Path) -> str:
    """A file's text; raises for one that is too large or not UTF-8."""

    if (nbytes := path.stat().st_size) > MAX_TEXT_BYTES:
        raise InvalidRequest(
            f"{path} has {nbytes:,} bytes; at most {MAX_TEXT_BYTES:,} are read", param="text"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8: {error}", param="text", value=str(path)) from None


def check_generates(llm: object, name: str) -> None:
    """Raise for a model that predicts no tokens: an encoder, say."""

    if "score" not in getattr(llm, "verbs", ()):
        raise Unsupported(f"{name} does not predict tokens; give a language model", param="model")


def show(report: PerplexityReport) -> None:
    """Print the figures."""

    out = console()
    how = "windows of" if report.stride is None else f"windows {report.stride} apart of"
    out.print(
        f"{report.n_scored:,} of {report.n_tokens:,} tokens scored, {len(report.windows):,} {how} "
        f"{report.window}",
        soft_wrap=True,
    )
    out.print(f"perplexity       {figure(report.perplexity)}", soft_wrap=True)
    if report.token_error is not None:
        out.print(f"  llama.cpp's ±  {report.token_error:.5f}", soft_wrap=True)
    if (found := report.comparison) is not None:
        for name, estimate in (
            ("its reference's", found.reference_perplexity),
            ("ln of the ratio", found.log_ratio),
            ("KL mean", found.kl_mean),
            ("KL median", found.kl_median),
            ("KL 99 %", found.kl_99),
            ("same top token", found.same_top),
        ):
            out.print(f"{name:<16} {figure(estimate, 6)}", soft_wrap=True)
        out.print(f"{'KL maximum':<16} {found.kl_max:.6f}", soft_wrap=True)


def figure(estimate: Estimate, digits: int = 4) -> str:
    """An estimate with its interval."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.{digits}f}"
    return f"{estimate.value:.{digits}f}  (95 %: {estimate.low:.{digits}f} to {estimate.high:.{digits}f})"


# `stretto score`: how probable a text is to a model, token by token.


@o.flags("score")
def score(
    words: o.ModelAndText = None,
    model: o.Model = None,
    adapter: o.Adapter = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object.")] = False,
    **options: Any,
) -> None:
    """Show how probable each token of a text is, given those before it, and the text's perplexity.

    One argument is the text, unless it is the name or path of a model; two are model and text.
    """

    model, text = model_and_prompt(words or [], model)
    content = prompt_text(text)
    model = model or default_model()
    with open_llm(model, **o.select_given(options, MACHINE), verb="score") as llm:
        check_generates(llm, model)
        mix = load_adapters(llm, adapter or [])
        (tokens,) = llm.prompt_logprobs([content], adapter=mix or None)
    facts = summary(tokens)
    if as_json:
        rows = [{"id": token.id, "text": token.text, "logprob": token.logprob} for token in tokens]
        print_json({"model": model, **facts, "tokens": rows})
        return
    for token in tokens:
        shown = "" if token.logprob is None else f"{token.logprob:9.4f}  {math.exp(token.logprob):7.2%}"
        print(f"{shown:>18}  {clean(token.text)}")
    note(
        f"{facts['n_tokens']:,} tokens, log-probability {facts['logprob']:.4f}"
        + (f", perplexity {facts['perplexity']:.4f}" if facts["perplexity"] is not None else "")
    )


def summary(tokens: Sequence[Any]) -> dict[str, Any]:
    """The log-probability of all tokens behind the first, and the perplexity by them."""
    logprobs = [token.logprob for token in tokens if token.logprob is not None]
    total = math.fsum(logprobs)
    mean = -total / len(logprobs) if logprobs else None
    return {
        "n_tokens": len(tokens),
        "logprob": total,
        "perplexity": math.exp(min(mean, 700.0)) if mean is not None else None,
    }
