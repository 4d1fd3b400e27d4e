"""`stretto classify`: the labels of images, files or texts."""

from __future__ import annotations

from typing import Annotated

import typer

from stretto.cli.task_files import (
    IMAGES,
    AsJson,
    Device,
    Threads,
    files_of,
    model_option,
    opened,
    run_all,
    source_of,
    texts_of,
)

DEFAULT_MODEL = "efficientnet-lite0"


def classify(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Files and folders, or texts, as the model takes them; - for stdin."),
    ] = None,
    model: Annotated[str, model_option("A model that classifies.")] = DEFAULT_MODEL,
    top: Annotated[int, typer.Option(min=1, help="How many labels.")] = 5,
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Give images, files or texts their labels, most probable first."""
    from stretto.cli.output import clean, print_json

    images = files_of(inputs or [], IMAGES) if model == DEFAULT_MODEL else []  # others may take texts
    with opened(model, device, threads, verb="classify", files=images) as llm:
        takes = getattr(llm, "takes", "text")
        endings = IMAGES if takes == "image" else ()
        names = texts_of(inputs or []) if takes == "text" else files_of(inputs or [], endings)
        source = str if takes == "text" else source_of
        found = []
        for name, result in run_all(names, lambda one: llm.classify(source(one), top=top)):
            if as_json:
                found.append({"input": name, **result.to_dict()})
                continue
            prefix = f"{clean(name)}: " if len(names) > 1 else ""
            print(prefix + ", ".join(f"{clean(label.name)} {label.score:.2f}" for label in result))
        if as_json:
            print_json(found)
