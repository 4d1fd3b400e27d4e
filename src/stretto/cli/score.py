"""`stretto score`: how probable a text is to a model, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from stretto.cli import options as o


def score(
    words: o.ModelAndText = None,
    model: o.Model = None,
    adapter: o.Adapter = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object.")] = False,
    cells: o.Cells = 8192,
    kv: o.Kv = "f16",
    backend: o.Backend = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    precision: o.Precision = "standard",
    repack: o.Repack = "auto",
) -> None:
    """Show how probable each token of a text is, given those before it, and the text's perplexity.

    One argument is the text, unless it is the name or path of a model; two are model and text.
    """
    from stretto.cli.adapters import load_adapters
    from stretto.cli.first_run import default_model
    from stretto.cli.generation import note, open_llm
    from stretto.cli.output import clean, print_json
    from stretto.cli.perplexity import check_generates
    from stretto.cli.prompts import model_and_prompt, prompt_text

    model, text = model_and_prompt(words or [], model)
    content = prompt_text(text)
    model = model or default_model()
    with open_llm(
        model,
        backend=backend,
        device=device,
        threads=threads,
        cells=cells,
        kv=kv,
        precision=precision,
        repack=o.REPACK[repack],
        verb="score",
    ) as llm:
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
