"""What `detect`, `segment` and `read` do alike: a result for each image, printed, drawn or as JSON."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from stretto.cli.output import clean, print_json
from stretto.cli.task_files import (
    IMAGES,
    check_picture_name,
    files_of,
    opened,
    run_all,
    save_picture,
    source_of,
)


def show_images(
    files: Sequence[str],
    model: str,
    verb: str,
    out: str | None,
    as_json: bool,
    device: str,
    threads: int | None,
    picture: str = "draw",
    **options: Any,
) -> None:
    """Run a verb on each image, with `options`.

    `picture` is the result's method that makes what is written to `out`.
    """
    names = files_of(files, IMAGES)
    if out is not None and len(names) == 1:
        check_picture_name(out)
    found = []
    with opened(model, device, threads, verb=verb, files=names) as llm:
        sources = {name: source_of(name) for name in names if name == "-"}  # stdin can be read once

        def work(name: str) -> Any:
            source = sources.get(name, name)
            result = getattr(llm, verb)(source, **options)
            if out is not None:
                save_picture(out, name, len(names), getattr(result, picture)(source))
            return result

        for name, result in run_all(names, work):
            if as_json:
                found.append({"file": name, **result.to_dict()})
                continue
            if len(names) > 1:
                print(f"{clean(name)}:")
            for line in io.StringIO(str(result)):
                print(clean(line.rstrip("\n")))
    if as_json:
        print_json(found)
