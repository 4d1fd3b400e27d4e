"""Multiple choice: log-likelihoods equal `llm.score`, whatever the choices share."""

import json

import numpy as np
import pytest

from recurrent_mock import recurrent_llm
from stretto.errors import ContextOverflow, InvalidRequest
from stretto.evaluation import Question, multiple_choice, read_questions
from stretto.evaluation.choices import score_choices
from stretto.testing import mock_llm

QUESTIONS = [
    Question("Few words. Grass is", ("green", "loud and heavy", "red"), 0),
    Question("Few words. Snow is", ("white", "green"), 0),
    Question("", ("a", "b"), 1),
    Question("Something else  ", ("xyz", "xyw", "x"), 2),
]


def random_model(**options):
    table = np.random.default_rng(1).normal(size=(258, 258)).astype(np.float32)
    return mock_llm(lambda seen: table[seen[-1]] + 0.1 * table[seen[0]], **options)


def plain_score(llm, context, choice):
    """Of the characters of a choice, each scored in a pass of its own text alone."""
    start = [] if context else [llm.tokenizer.eos_id]
    before = [*start, *llm.tokenizer.encode(context.rstrip())]
    ids = [*start, *llm.tokenizer.encode(f"{context} {choice}")]
    return float(llm.score(ids)[len(before) - 1 :].sum())


def test_choices_that_share_a_prefix_score_as_each_alone():
    llm = random_model()
    report = multiple_choice(llm, QUESTIONS)
    for question, found in zip(QUESTIONS, report.scores, strict=True):
        alone = [plain_score(llm, question.context, choice) for choice in question.choices]
        assert found == pytest.approx(alone, rel=1e-5)
    assert not llm.cells.sequences


def test_what_choices_share_is_computed_once():
    llm = random_model()
    multiple_choice(llm, [QUESTIONS[0], QUESTIONS[0]])
    context = llm.tokenizer.encode(QUESTIONS[0].context)
    own = sorted(" green"[:-1] + "loud and heavy"[:-1] + "red"[:-1])  # the last of each is only predicted
    found = ["".join(map(chr, sorted(batch))) for batch in llm.backend.batches]
    assert found == ["".join(sorted(map(chr, context))), "".join(own), chr(context[-1]), "".join(own)]


def test_a_recurrent_model_scores_them_the_same_way():
    with recurrent_llm(slots=4) as llm:
        found = multiple_choice(llm, QUESTIONS).scores
        for question, scores in zip(QUESTIONS, found, strict=True):
            alone = [plain_score(llm, question.context, choice) for choice in question.choices]
            assert scores == pytest.approx(alone, rel=1e-5)


def test_one_question_can_be_scored_by_itself():
    llm = random_model()
    alone = [plain_score(llm, QUESTIONS[0].context, choice) for choice in QUESTIONS[0].choices]
    assert score_choices(llm, QUESTIONS[0]) == pytest.approx(alone, rel=1e-5)


def test_accuracies_are_shares_with_intervals():
    llm = mock_llm(lambda seen: np.where(np.arange(258) == ord("g"), 9.0, 0.0))
    report = multiple_choice(llm, [Question("x", ("g", "aaaa"), 0), Question("x", ("b", "g"), 0)])
    assert (report.accuracy.value, report.picked) == (0.5, [0, 1])
    assert 0 < report.accuracy.low < 0.5 < report.accuracy.high < 1


def test_normalising_by_length_can_turn_a_choice():
    llm = mock_llm(lambda seen: np.zeros(258))  # every token costs the same, and the delimiter too
    report = multiple_choice(llm, [Question("x", ("ab", "abcdefgh"), 1)])
    assert (report.picked, report.picked_norm) == ([0], [1])


@pytest.mark.parametrize(
    ("line", "param"),
    [
        ("", "task"),
        ("{", "task"),
        ("[1]", "task"),
        ('{"choices": ["a", "b"], "answer": 0}', "context"),
        ('{"context": "x", "choices": ["a"], "answer": 0}', "choices"),
        ('{"context": "x", "choices": ["a", ""], "answer": 0}', "choices"),
        ('{"context": "x", "choices": ["a", 1], "answer": 0}', "choices"),
        ('{"context": "x", "choices": ["a", "b"], "answer": 2}', "answer"),
        ('{"context": "x", "choices": ["a", "b"], "answer": true}', "answer"),
        ('{"context": "x", "choices": ["a", "b"], "answer": NaN}', "answer"),
    ],
)
def test_a_wrong_line_is_refused_by_name(tmp_path, line, param):
    task = tmp_path / "task.jsonl"
    task.write_text(line)
    with pytest.raises(InvalidRequest) as refused:
        read_questions(task)
    assert refused.value.param == param


def test_questions_are_read_in_order_up_to_a_limit(tmp_path):
    task = tmp_path / "task.jsonl"
    lines = [json.dumps({"context": c, "choices": ["a", "b"], "answer": 1}) for c in "xyz"]
    task.write_text("\n\n".join(lines))
    assert [question.context for question in read_questions(task, 2)] == ["x", "y"]


def test_a_context_beyond_the_cells_is_refused():
    with pytest.raises(ContextOverflow, match="load the model with more cells"):
        multiple_choice(mock_llm("x", cells=64), [Question("x" * 70, ("a", "b"), 0)])
