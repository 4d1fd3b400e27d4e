"""Multiple choice by log-likelihood: the choice that a model finds most probable behind the context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from stretto.errors import ContextOverflow, InvalidRequest
from stretto.evaluation.questions import Question, read_questions
from stretto.evaluation.reading import check_finite
from stretto.evaluation.statistics import Estimate, share
from stretto.llm import LLM

__all__ = ["ChoiceReport", "Question", "multiple_choice", "read_questions", "score_choices"]


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
        return {
            "accuracy": self.accuracy.as_dict(),
            "accuracy_norm": self.accuracy_norm.as_dict(),
            "n_questions": len(self.scores),
            "scores": self.scores,
            "picked": self.picked,
            "picked_norm": self.picked_norm,
        }


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
        found = _scores(llm, *_encoded(llm, question, delimiter))
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
    return _scores(llm, *_encoded(llm, question, delimiter))


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


def _scores(llm: LLM, texts: list[list[int]], first: int) -> list[float]:
    """The log-likelihood of each text's tokens from `first` on: all in one pass behind what they share."""
    n_shared = min(first, *(_common(texts[0], ids) for ids in texts[1:]))
    if n_shared:
        found = llm.score(texts[0][:n_shared], [ids[n_shared:] for ids in texts])
    else:
        n_shared, found = 1, [llm.score(ids) for ids in texts]
    scores = np.array([one[first - n_shared :].sum(dtype=np.float64) for one in found])
    check_finite(scores)
    return [float(score) for score in scores]


def _common(left: list[int], right: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
