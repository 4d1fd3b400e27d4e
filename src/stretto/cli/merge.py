"""`stretto merge`: a model with an adapter, as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from stretto.cli import options as o


def merge(
    name: o.Name = None,
    adapter: Annotated[
        str | None,
        typer.Argument(
            metavar="ADAPTER", help="A LoRA adapter: a GGUF file or a PEFT folder; PATH=SCALE scales it."
        ),
    ] = None,
    out: Annotated[str | None, typer.Argument(metavar="OUT", help="The GGUF file to write.")] = None,
    model: o.NeededModel = None,
    dtype: Annotated[
        Literal["auto", "f16", "f32"],
        typer.Option(
            "--type", help="Of changed matrices; auto: f32 where the model has f32 or bf16, else f16."
        ),
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a model with an adapter merged into its weights.

    Matrices that the adapter changes become float16 or float32, all others stay as they are. A merge that is
    interrupted leaves nothing behind.
    """
    from stretto.cli.adapters import read_scaled
    from stretto.cli.output import clean, console, progress_bar, size
    from stretto.cli.prompts import model_and_files
    from stretto.errors import InvalidRequest
    from stretto.models import read_spec
    from stretto.models.adapting import target_of
    from stretto.weights import hub
    from stretto.weights.adapters import read_adapter
    from stretto.weights.adapters.merging import merge_adapter
    from stretto.weights.gguf import GGUF

    usage = "merge MODEL ADAPTER OUT"
    model, (adapter, target) = model_and_files((name, adapter, out), model, usage, has_default=False)
    file_out = Path(target)
    source, (path, scale) = hub.resolve(model, pull=False), read_scaled(adapter)
    if source.is_dir():
        raise InvalidRequest(f"{source} is a folder; merge takes a GGUF file")
    with GGUF(source) as file, progress_bar("{task.completed}/{task.total} matrices") as bar:
        lora = read_adapter(path, target_of(read_spec(file)))
        task = bar.add_task(clean(model), total=len(lora.pairs))

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        merge_adapter(file, lora, file_out, scale=scale, dtype=dtype, replace=force, progress=show)
    nbytes = file_out.stat().st_size
    line = f"{file_out}: {len(lora.pairs)} matrices changed, rank {lora.rank}, {size(nbytes)}"
    console().print(clean(line), soft_wrap=True)
