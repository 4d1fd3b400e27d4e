"""Questions with several answers, from a JSONL file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.errors import InvalidRequest

MAX_BYTES = 1 << 30
MAX_CHOICES = 256


@dataclass(frozen=True)
class Question:
    """A context, the texts that may follow it, and which of them is right."""

    context: str
    choices: tuple[str, ...]
    answer: int


def read_questions(path: str | os.PathLike[str], most: int | None = None) -> list[Question]:
    """The questions of a file: a JSON object a line, with `context`, `choices` and `answer`.

    `answer` is the index of the right choice, from 0. Empty lines are skipped; `most` reads the first ones.
    """
    path = Path(path)
    if path.stat().st_size > MAX_BYTES:
        raise InvalidRequest(f"{path} is larger than {MAX_BYTES} bytes; split it", param="task")
    questions: list[Question] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if most is not None and len(questions) >= most:
                break
            if line.strip():
                questions.append(_question(line, f"{path}, line {number}"))
    if not questions:
        raise InvalidRequest(f"{path} has no questions; it needs one JSON object a line", param="task")
    return questions


def _question(line: bytes, where: str) -> Question:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where}: not JSON: {error}", param="task") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where}: not a JSON object", param="task")
    context, choices, answer = value.get("context"), value.get("choices"), value.get("answer")
    if not isinstance(context, str):
        raise InvalidRequest(f"{where}: context must be a text", param="context", value=context)
    if (
        not isinstance(choices, list)
        or not 2 <= len(choices) <= MAX_CHOICES
        or not all(isinstance(choice, str) and choice for choice in choices)
    ):
        raise InvalidRequest(
            f"{where}: choices must be 2 to {MAX_CHOICES} texts, none of them empty", param="choices"
        )
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise InvalidRequest(
            f"{where}: answer must be the index of the right choice, 0 to {len(choices) - 1}, not {answer!r}",
            param="answer",
            value=answer,
        )
    return Question(context, tuple(choices), answer)
