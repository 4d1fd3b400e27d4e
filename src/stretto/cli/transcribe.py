"""`stretto transcribe`: speech as text."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from stretto.cli.task_files import (
    SOUNDS,
    AsJson,
    Device,
    Files,
    Threads,
    files_of,
    model_option,
    opened,
    run_all,
    source_of,
)


def transcribe(
    files: Files,
    model: Annotated[str, model_option("A model that can transcribe.")] = "moonshine",
    form: Annotated[
        Literal["text", "times", "srt", "vtt"],
        typer.Option("--format", help="The text alone, with times, or subtitles."),
    ] = "text",
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Write down the speech in sound files (WAV)."""
    from stretto.cli.output import clean, print_json
    from stretto.tasks.subtitles import srt, vtt

    names = files_of(files, SOUNDS)
    found = []
    with opened(model, device, threads, verb="transcribe", files=names) as llm:
        for name, transcript in run_all(names, lambda one: llm.transcribe(source_of(one))):
            if as_json:
                found.append({"file": name, **transcript.to_dict()})
                continue
            if len(names) > 1 and form in ("text", "times"):
                print(f"{clean(name)}:")
            if form == "times":
                for segment in transcript:
                    print(clean(str(segment)))
            else:
                text = {"srt": srt, "vtt": vtt}[form](transcript) if form != "text" else transcript.text
                sys.stdout.write("\n".join(clean(line) for line in text.splitlines()) + "\n")
    if as_json:
        print_json(found)
