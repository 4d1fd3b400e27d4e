"""src/stretto/options/keywords.py: the tables of options as type checkers read them.

python scripts/option_types.py            # writes it
python scripts/option_types.py --check    # ends with 1 if it is out of date
"""

import json
import sys

from generated_files import ROOT, is_outdated, run
from stretto.options.generating import BRANCHING, GENERATE, PARALLEL, SAMPLING, TEMPLATE, TOOLS
from stretto.options.option import Option, Table, without
from stretto.options.serving import LIMITS, SERVE

HEAD = '''\
"""Options as type checkers read them; `scripts/option_types.py` writes this file from the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from stretto.drafts import Drafter
    from stretto.engine.inside import Capture, Patch
    from stretto.engine.types import Token
    from stretto.parallel.types import Member, ParallelStep
    from stretto.structured import Grammar
    from stretto.tools.check import Choice, Tools
'''
PROGRESS = Option("progress", bool, False, "Show a bar.")
N = tuple(option for option in BRANCHING if option.name == "n")
KEYWORDS = without(GENERATE, "n", *(option.name for option in SAMPLING))
CLASSES: tuple[tuple[str, str, str, Table], ...] = (  # class, base, what takes it, its own options
    ("SamplingOptions", "TypedDict", "everything that samples", SAMPLING),
    ("Keywords", "SamplingOptions", "`generate`, `stream` and `chat`", KEYWORDS),
    ("BranchKeywords", "Keywords", "`generate`, with `n`", N),
    ("OptionKeywords", "BranchKeywords", "`stretto.Options`: all there are", (TEMPLATE,)),
    ("GenerateKeywords", "Keywords", "`generate`", (PROGRESS,)),
    ("ChatKeywords", "Keywords", "`chat` and `achat`", TOOLS),
    ("ParallelOptions", "TypedDict", "`llm.parallel`", without(PARALLEL, "stream")),
)


def page() -> str:
    """The text of the file."""
    parts = [HEAD.rstrip()]
    for name, base, taker, table in CLASSES:
        parts += [
            "",
            "",
            f"class {name}({base}, total=False):",
            f'    """Keyword arguments of {taker}."""',
            "",
        ]
        parts += [f"    {option.name}: {option.annotation}" for option in table]
    parts += ["", "", "@dataclass(frozen=True, kw_only=True)", "class ServeOptions:"]
    parts += ['    """The options of a server, beside its models, keys and limits of requests."""', ""]
    parts += [
        f"    {option.name}: {option.annotation} = {literal(option.default)}"
        for option in SERVE
        if option.name not in LIMITS
    ]
    return "\n".join(parts) + "\n"


def literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


FILE = ROOT / "src" / "stretto" / "options" / "keywords.py"

if __name__ == "__main__":
    sys.exit(run("Write the types of options.", {FILE: page()} if is_outdated(FILE, page()) else {}))
