"""`stretto merge`: a model with an adapter, as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def merge(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or a model that is here.")],
    adapter: Annotated[
        str,
        typer.Argument(
            metavar="ADAPTER", help="A LoRA adapter: a GGUF file or a PEFT folder; PATH=SCALE scales it."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The GGUF file to write.")],
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
    from stretto.errors import InvalidRequest
    from stretto.models import read_spec
    from stretto.models.adapting import target_of
    from stretto.weights import hub
    from stretto.weights.adapters import read_adapter
    from stretto.weights.adapters.merging import merge_adapter
    from stretto.weights.gguf import GGUF

    source, (path, scale) = hub.resolve(model, pull=False), read_scaled(adapter)
    if source.is_dir():
        raise InvalidRequest(f"{source} is a folder; merge takes a GGUF file")
    with GGUF(source) as file, progress_bar("{task.completed}/{task.total} matrices") as bar:
        lora = read_adapter(path, target_of(read_spec(file)))
        task = bar.add_task(clean(model), total=len(lora.pairs))

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        merge_adapter(file, lora, out, scale=scale, dtype=dtype, replace=force, progress=show)
    line = f"{out}: {len(lora.pairs)} matrices changed, rank {lora.rank}, {size(out.stat().st_size)}"
    console().print(clean(line), soft_wrap=True)
