"""Multiple choice by log-likelihood: the choice that a model finds most probable behind the context."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ContextOverflow, InvalidRequest
from stretto.evaluation.reading import check_finite
from stretto.evaluation.statistics import Estimate, share
from stretto.llm import LLM

# Questions with several answers, from a JSONL file.

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


@dataclass(frozen=True)
class ChoiceReport:
    """Accuracies, by the log-likelihood of choices and by the same per character of a choice.

    `scores` has the log-likelihoods of each question's choices.
    """

    accuracy: Estimate
    accuracy_norm: Estimate
    scores: list[list[float]]
    picked: list[int]
    picked_norm: list[int]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"n_questions": len(self.scores), **asdict(self)}


def multiple_choice(
    llm: LLM,
    questions: Iterable[Question],
    *,
    delimiter: str = " ",
    progress: Callable[[int], None] | None = None,
) -> ChoiceReport:
    """Ask questions; `delimiter` goes between a context and its choices.

    >>> multiple_choice(llm, [Question("Grass is", ("green", "loud"), 0)]).accuracy.value
    """
    scores: list[list[float]] = []
    picked: list[int] = []
    picked_norm: list[int] = []
    answers: list[int] = []
    for question in questions:
        found = score_choices(llm, question, delimiter)
        lengths = [len(choice) for choice in question.choices]
        scores.append(found)
        picked.append(int(np.argmax(found)))
        picked_norm.append(int(np.argmax(np.array(found) / lengths)))
        answers.append(question.answer)
        if progress is not None:
            progress(len(scores))
    if not scores:
        raise InvalidRequest("there are no questions; give at least one", param="questions")
    return ChoiceReport(
        share(_n_equal(picked, answers), len(answers)),
        share(_n_equal(picked_norm, answers), len(answers)),
        scores,
        picked,
        picked_norm,
    )


def score_choices(llm: LLM, question: Question, delimiter: str = " ") -> list[float]:
    """The log-likelihood of each choice behind the context."""
    scores: list[float] = []
    for prefix, rests, n_skipped in _passes(*_encoded(llm, question, delimiter)):
        scores += _sums(llm.score(prefix, rests), n_skipped)
    return scores


async def ascore_choices(llm: LLM, question: Question, delimiter: str = " ") -> list[float]:
    """As `score_choices`, to await: questions that are asked at the same time share passes."""
    scores: list[float] = []
    for prefix, rests, n_skipped in _passes(*_encoded(llm, question, delimiter)):
        scores += _sums(await llm.ascore(prefix, rests), n_skipped)
    return scores


def _n_equal(left: list[int], right: list[int]) -> int:
    return sum(a == b for a, b in zip(left, right, strict=True))


def _encoded(llm: LLM, question: Question, delimiter: str) -> tuple[list[list[int]], int]:
    """The tokens of each context with choice, and from which on they are the choice's.

    Spaces at the end of a context count as the choice's, since most tokenizers put a space before a word.
    """
    context = question.context.rstrip()
    behind = question.context[len(context) :]
    encode = llm.tokenizer.encode
    whole = [encode(context + behind + delimiter + choice, special=True) for choice in question.choices]
    first = len(encode(context, special=True)) if context else 1
    if not context and not llm.tokenizer.add_bos:  # something has to come before the first token
        start = llm.tokenizer.bos_id if llm.tokenizer.bos_id is not None else llm.tokenizer.eos_id
        if start is None:
            raise InvalidRequest(
                "the context is empty and the model has no BOS token; give a context", param="context"
            )
        whole = [[start, *ids] for ids in whole]
    if llm.tokenizer.add_eos:
        n_end = len(llm.tokenizer.suffix_ids)
        whole = [ids[: len(ids) - n_end] for ids in whole]
        first -= n_end if context else 0
    # A choice may merge with the context's last token: at least one token is always the choice's.
    first = max(1, min(first, *(len(ids) - 1 for ids in whole)))
    for ids in whole:
        if len(ids) > llm.context_length:
            raise ContextOverflow(
                f"a context with its choice has {len(ids)} tokens and the model takes "
                f"{llm.context_length}; shorten it, or load the model with more cells",
                n_tokens=len(ids),
                limit=llm.context_length,
                param="context",
            )
    return whole, first


def _passes(texts: list[list[int]], first: int) -> list[tuple[list[int], list[list[int]], int]]:
    """Prefixes, what follows each, and how many of those tokens are still context.

    All texts go into one pass behind what they share; those that share nothing have one each.
    """
    n_shared = min(first, *(_common(texts[0], ids) for ids in texts))
    if n_shared:
        return [(texts[0][:n_shared], [ids[n_shared:] for ids in texts], first - n_shared)]
    return [(ids[:1], [ids[1:]], first - 1) for ids in texts]


def _sums(found: list[NDArray[np.float32]], n_skipped: int) -> list[float]:
    scores = np.array([one[n_skipped:].sum(dtype=np.float64) for one in found])
    check_finite(scores)
    return [float(score) for score in scores]


def _common(left: list[int], right: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
