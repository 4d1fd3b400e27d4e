"""Multiple choice by log-likelihood: the choice that a model finds most probable behind the context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from stretto.backends.base import Batch
from stretto.errors import ContextOverflow, InvalidRequest
from stretto.evaluation.questions import Question, read_questions
from stretto.evaluation.reading import FIRST_SEQUENCE, MAX_LOGITS, PASS_TOKENS, log_probabilities
from stretto.evaluation.statistics import Estimate, share
from stretto.llm import LLM

__all__ = ["ChoiceReport", "Question", "multiple_choice", "read_questions", "score_choices"]

Row = tuple[int, int, int, bool]  # token, position, sequence, whether its logits are wanted


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
    """Ask questions; `delimiter` stands between a context and its choices.

    >>> multiple_choice(llm, [Question("Grass is", ("green", "loud"), 0)]).accuracy.value
    """
    scores: list[list[float]] = []
    picked: list[int] = []
    picked_norm: list[int] = []
    answers: list[int] = []
    reader = _PrefixReader(llm)
    try:
        for question in questions:
            found = reader.score(*_encoded(llm, question, delimiter))
            lengths = [len(choice) for choice in question.choices]
            scores.append(found)
            picked.append(int(np.argmax(found)))
            picked_norm.append(int(np.argmax(np.array(found) / lengths)))
            answers.append(question.answer)
            if progress is not None:
                progress(len(scores))
    finally:
        reader.close()
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
    reader = _PrefixReader(llm)
    try:
        return reader.score(*_encoded(llm, question, delimiter))
    finally:
        reader.close()


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


class _PrefixReader:
    """Scores texts that begin alike: the prefix is computed once, and kept for a next one that shares it."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._prefix: list[int] = []  # in the first of our sequences
        self._most_rows = max(1, min(PASS_TOKENS, MAX_LOGITS // llm.spec.n_vocab))

    def score(self, texts: list[list[int]], first: int) -> list[float]:
        """The log-likelihood of each text's tokens from `first` on."""
        n_shared = min(first - 1, *(_common(texts[0], ids) for ids in texts[1:]))
        self._set_prefix(texts[0][:n_shared])
        scores = [0.0] * len(texts)
        for group in self._groups([len(ids) - 1 - n_shared for ids in texts]):
            for number, found in zip(group, self._read([texts[n] for n in group], first), strict=True):
                scores[number] = found
        return scores

    def _groups(self, lengths: list[int]) -> list[list[int]]:
        """Texts whose own parts fit into a pass and the cells together."""
        room = min(PASS_TOKENS, len(self._llm.cells) - len(self._prefix))
        if self._llm.spec.recurrent:
            room = 0  # each would need a slot of states, and there may be few
        groups: list[list[int]] = [[]]
        total = 0
        for number, length in enumerate(lengths):
            if groups[-1] and total + length > room:
                groups.append([])
                total = 0
            groups[-1].append(number)
            total += length
        return groups

    def _set_prefix(self, prefix: list[int]) -> None:
        """Have a prefix computed; what it shares with the last one stays, unless a state cannot go back."""
        n = _common(self._prefix, prefix)
        if self._llm.spec.recurrent and n < len(self._prefix):
            n = 0
        self._llm.cells.remove(FIRST_SEQUENCE, n)
        self._prefix = prefix[:n]
        for at in range(n, len(prefix), PASS_TOKENS):
            batch = Batch()
            batch.extend(prefix[at : at + PASS_TOKENS], at, (FIRST_SEQUENCE,))
            self._llm.forward(batch)
            self._prefix = prefix[: at + PASS_TOKENS]

    def _read(self, texts: list[list[int]], first: int) -> list[float]:
        """Fork the prefix for each text, and run what they do not share in one batch."""
        n_shared, cells = len(self._prefix), self._llm.cells
        sequences = range(FIRST_SEQUENCE + 1, FIRST_SEQUENCE + 1 + len(texts))
        try:
            for sequence in sequences:
                if n_shared:
                    cells.copy(FIRST_SEQUENCE, sequence)
            rows: list[Row] = []
            targets: list[tuple[int, int]] = []  # number of the text, token
            for number, (sequence, ids) in enumerate(zip(sequences, texts, strict=True)):
                for at in range(n_shared, len(ids) - 1):
                    rows.append((ids[at], at, sequence, at >= first - 1))
                    if at >= first - 1:
                        targets.append((number, ids[at + 1]))
            return self._summed(rows, targets, len(texts))
        finally:
            for sequence in sequences:
                cells.remove(sequence)

    def _summed(self, rows: list[Row], targets: list[tuple[int, int]], n_texts: int) -> list[float]:
        scores, done = np.zeros(n_texts), 0
        for at in range(0, len(rows), self._most_rows):
            batch = Batch()
            for token, position, sequence, wanted in rows[at : at + self._most_rows]:
                batch.add(token, position, (sequence,), logits=wanted)
            logits = self._llm.forward(batch)
            mine = targets[done : done + len(logits)]
            done += len(logits)
            if mine:
                numbers, tokens = np.array(mine).T
                np.add.at(scores, numbers, log_probabilities(logits, tokens))
        return [float(score) for score in scores]

    def close(self) -> None:
        """Free the prefix's cells."""
        self._llm.cells.remove(FIRST_SEQUENCE)
        self._prefix = []


def _common(left: list[int], right: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
