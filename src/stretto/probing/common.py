"""What the tools have in common: answers, texts of tokens, tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from stretto.llm import LLM

Floats = NDArray[np.float32]
ROWS = 64  # of logits that a pass of a tool has
TOGETHER = 16  # requests that run at a time


def layers_with(llm: LLM, part: str) -> list[int]:
    """The layers that have such a site."""
    sites = llm.sites()
    found = [i for i in range(llm.spec.n_layer) if f"layers.{i}.{part}" in sites]
    if not found:
        raise InvalidRequest(
            f"no layer has a site {part!r}; llm.sites() lists those there are", param="part", value=part
        )
    return found


def answer_ids(llm: LLM, answer: str | int, against: str | int | None) -> list[int]:
    """The ids of the first tokens of the answers."""
    found: list[int] = []
    for one in [answer] if against is None else [answer, against]:
        ids = llm.tokenizer.encode(one) if isinstance(one, str) else [one]
        if not ids or type(ids[0]) is not int or not 0 <= ids[0] < llm.spec.n_vocab:
            raise InvalidRequest(
                f"an answer is empty or no token: {one!r:.80}; give a text of at least one token, or an id",
                param="answer",
            )
        found.append(ids[0])
    return found


def text_of(llm: LLM, token: int) -> str:
    """The text of one token."""
    return llm.tokenizer.decode([int(token)])


def table_of(rows: list[list[str]]) -> str:
    """Rows of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
