"""The comparison of ways of decoding: what its results cover, and how parts of it are measured again."""

import json
import sys
from pathlib import Path

import pytest

from stretto.testing import mock_llm

ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(monkeypatch):
    """benchmarks/parallel_quality.py, which imports its neighbour parallel.py."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("parallel", "parallel_quality"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import parallel_quality

    yield parallel_quality
    for name in ("parallel", "parallel_quality"):
        sys.modules.pop(name, None)


@pytest.fixture
def found():
    return json.loads((ROOT / "benchmarks" / "raw" / "parallel_quality.json").read_text("utf-8"))


def test_the_results_cover_every_way_of_both_models(study, found):
    assert list(found) == list(study.MODELS)
    for parts in found.values():
        assert list(parts["texts"]) == list(study.ways())
        assert list(parts["tasks"]) == [*study.ways(), study.PACKED]
        for way, one in parts["texts"].items():
            assert all(low <= mean <= high for mean, low, high in (one["own"], one["other"])), way
        for way in study.ways():
            assert set(parts["tasks"][way]) == set(study.TASKS), way


def test_the_questions_have_four_choices_and_no_favourite_place(study):
    asked = study.questions()
    assert len(asked) == 40
    assert {len(one.choices) for one in asked} == {4}
    assert [sum(one.answer == i for one in asked) for i in range(4)] == [10] * 4
    for context, answer in study.choices():
        assert answer in context.rpartition("Choices: ")[2].partition("\n")[0].split(", ")


def test_right_answers_are_counted(study):
    asked = [("Say: ", "Hello"), ("Say it: ", "Bye")]
    result = study.task(mock_llm("Hello\nyou"), asked, study.ways()["greedy"])
    assert result["right"][0] == 0.5
    assert result["rows"] >= len("Hello")


def test_only_the_named_ways_and_parts_are_measured_again(study, tmp_path):
    llm, file = mock_llm("Hello\nyou"), tmp_path / "found.json"
    kept = {"texts": {"greedy": {"rows": 1}}, "tasks": {"sampling": {"sums": {"rows": 7}}}}
    study.measure(llm, llm, ["copies"], ["greedy"], None, kept, lambda: study.write(file, kept))
    assert kept["texts"] == {"greedy": {"rows": 1}}
    assert list(kept["tasks"]) == ["greedy", "sampling"]  # in the order of the ways
    assert kept["tasks"]["sampling"] == {"sums": {"rows": 7}}
    assert kept["tasks"]["greedy"]["copies"]["right"] == [0, 0, 0]
    assert json.loads(file.read_text("utf-8")) == kept
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
