"""Runs on a scripted model: what they give, how they are shown, where they end, what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

import stretto
from stretto.errors import ContextOverflow, InvalidRequest, Unsupported
from stretto.parallel import Linear, Loop
from stretto.testing import END, byte_tokenizer, mock_llm

END_ID = byte_tokenizer().specials[END]


def says(*sets):
    """A script: after "x" comes the first set, then the second, …; a set maps texts to probabilities."""

    def script(seen):
        at = len(seen) - 1 - seen[::-1].index(ord("x"))
        depth = sum(any(chr(token) in options for token in seen[at:]) for options in sets)
        row = np.full(258, -1e9, np.float32)
        options = sets[depth] if depth < len(sets) else {END: 1.0}
        for text, probability in options.items():
            row[END_ID if text == END else ord(text)] = np.log(probability)
        return row

    return script


THREE = ({"a": 0.6, "b": 0.3, "c": 0.1}, {"d": 1.0}, {"e": 0.5, "f": 0.4, "[": 0.1})


def test_ways_to_show_it():
    run = mock_llm(says(*THREE)).parallel("x", threshold=0.25)
    assert run.text == "ade"
    assert run.brackets == str(run) == "[a/b]d[e/f]"
    assert run.raw == "abdef"
    assert (run.finish_reason, run.stop_reason) == ("stop", END_ID)
    assert [[member.text for member in step.members] for step in run.steps] == [["a", "b"], ["d"], ["e", "f"]]
    assert run.steps[0].members[1].probability == pytest.approx(0.3)
    assert run.steps[0].members[1].weight == pytest.approx(1 / 3)
    assert run.mean_width == pytest.approx(5 / 3)
    assert run.parallel_share == pytest.approx(2 / 3)
    assert run.usage.completion_tokens == 3


def test_the_default_threshold_keeps_a_sixth_and_drops_a_seventh():
    llm = mock_llm(says({"a": 0.7, "b": 1 / 6, "c": 0.3 - 1 / 6}))
    assert llm.parallel("x", max_tokens=1).brackets == "[a/b]"


def test_brackets_in_the_text():
    assert mock_llm(says({"]": 0.5, "/": 0.5}, {"[": 1.0})).parallel("x").brackets == r"[\//\]]\["


def test_json_and_graph():
    run = mock_llm(says(*THREE)).parallel("x", threshold=0.25)
    data = json.loads(run.to_json())
    assert data["text"] == "ade"
    assert data["steps"][0]["members"][0]["id"] == ord("a")
    assert data["steps"][0]["members"][0]["probability"] == pytest.approx(0.6)
    assert [(edge["from"], edge["to"]) for edge in data["edges"]] == [
        ([0, 0], [1, 0]), ([0, 1], [1, 0]), ([1, 0], [2, 0]), ([1, 0], [2, 1]),
    ]  # fmt: skip
    assert data["edges"][3]["probability"] == pytest.approx(0.4)
    graph = run.graph()
    assert graph.startswith("digraph")
    assert 's0_0 [label="a\\n0.60", penwidth=2];' in graph
    assert 's1_0 -> s2_1 [label="0.40"];' in graph


def test_streaming():
    llm = mock_llm(says(*THREE))
    stream = llm.parallel("x", threshold=0.25, stream=True)
    assert next(stream).brackets == "[a/b]"
    assert stream.so_far.brackets == "[a/b]d"  # all paths go through "d": so both are decided
    assert [step.brackets for step in stream] == ["d", "[e/f]"]
    assert stream.result.brackets == "[a/b]d[e/f]"
    with llm.parallel("x", stream=True) as stream:
        next(stream)
    assert stream.result.finish_reason == "cancelled"
    del stream
    assert llm.cache.stats().held == 0


def test_widths_and_thresholds():
    llm = mock_llm(says(*THREE))
    assert llm.parallel("x", threshold=0.05, max_width=2).brackets == "[a/b]d[e/f]"
    assert llm.parallel("x", threshold=0.7).brackets == "ade"
    assert llm.parallel("x", threshold=Linear(0.9, 0.3), max_tokens=3).brackets == "ad[e/f]"
    seen = []
    run = llm.parallel("x", threshold=lambda passed: seen.append(passed) or 0.3, max_tokens=3)
    assert seen == [0.0, 0.5, 1.0]
    assert run.finish_reason == "length"
    assert [step.threshold for step in run.steps] == [0.3] * 3


def test_end_tokens():
    assert mock_llm(says({"a": 0.5, END: 0.5 - 1e-3, "b": 1e-3})).parallel("x", max_tokens=1).brackets == "a"
    run = mock_llm(says({END: 0.5, "a": 0.4})).parallel("x", threshold=0.3)
    assert (run.steps, run.text, run.finish_reason) == ([], "", "stop")
    run = mock_llm(says({END: 0.5, "a": 0.4})).parallel("x", threshold=0.3, ignore_eos=True, max_tokens=1)
    assert [member.id for member in run.steps[0].members] == [END_ID, ord("a")]


def test_the_end_of_the_context_and_of_the_cells():
    endless = says(*[{"a": 0.5, "b": 0.5}] * 1)
    llm = mock_llm(lambda seen: endless([ord("x")]), context_length=16)
    run = llm.parallel("x")
    assert (run.finish_reason, len(run.steps)) == ("length", 16)
    llm = mock_llm(lambda seen: endless([ord("x")]), cells=16)
    run = llm.parallel("x")
    assert (run.finish_reason, run.stop_reason, len(run.steps)) == ("length", "cache full", 8)
    assert llm.cache.stats().held == 0
    llm.cells.check()
    with pytest.raises(ContextOverflow):
        llm.parallel("x" * 16)
    llm = mock_llm(lambda seen: endless([ord("x")]), cells=2, context_length=8)
    assert llm.parallel("x").stop_reason == "cache full"


def test_others_wait_for_a_run_and_come_back():
    endless = says({"a": 0.5, "b": 0.5})
    llm = mock_llm(lambda seen: endless([ord("x")]) if ord("x") in seen else ord("z"), cells=48)
    stream = llm.stream("y", temperature=0, max_tokens=30)
    next(stream)
    run = llm.parallel("x", max_tokens=12)
    assert (run.finish_reason, len(run.steps)) == ("length", 12)
    assert stream.result.text == "z" * 30


def test_repetitions_are_reported():
    endless = says({"a": 0.5, "b": 0.5})
    run = mock_llm(lambda seen: endless([ord("x")])).parallel("x", max_tokens=20)
    assert run.loop == Loop(0, 1, 20)
    assert mock_llm(says(*THREE)).parallel("x").loop is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threshold": 0}, "threshold must be a number above 0 to 1"),
        ({"threshold": 1.01}, "threshold"),
        ({"threshold": "low"}, "threshold"),
        ({"threshold": lambda passed: 0.0}, "threshold"),
        ({"mode": "blind"}, "mode must be 'isolated', 'visible'"),
        ({"mode": np.ones((2, 2), bool)}, "at least 8"),
        ({"mode": np.ones((8, 8))}, "bool"),
        ({"mode": ~np.eye(8, dtype=bool)}, "diagonal"),
        ({"mode": lambda members: np.ones((1, 1), bool)}, "at least 2"),
        ({"max_width": 0}, "max_width"),
        ({"combine": "sum"}, "combine must be"),
        ({"prune": 0}, "prune"),
        ({"prune_after": 0}, "prune_after"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"attention": 1}, "attention"),
        ({"treshold": 0.5}, "did you mean 'threshold'"),
    ],
)
def test_what_is_refused(options, words):
    llm = mock_llm(says(*THREE))
    with pytest.raises(InvalidRequest, match=words):
        llm.parallel("x", **options)
    assert llm.cache.stats().held == 0
    assert llm.parallel("x", threshold=0.3).text == "ade"


def test_a_backend_that_cannot():
    llm = mock_llm(says(*THREE))
    for options in ({"prune": 0.5}, {"attention": True}):
        with pytest.raises(Unsupported, match="'attention'; backend='reference' can"):
            llm.parallel("x", **options)
    llm.backend.capabilities = replace(llm.backend.capabilities, merge=False)
    with pytest.raises(Unsupported, match="'merge'"):
        llm.parallel("x")


def test_prompts():
    llm, other = mock_llm(says(*THREE)), mock_llm("no")
    assert [run.text for run in llm.parallel(["x", "yx"])] == ["ade", "ade"]
    with pytest.raises(InvalidRequest, match="empty"):
        llm.parallel("")
    with pytest.raises(InvalidRequest, match="not a sequence of this model"):
        llm.parallel(other.sequence("x"))
    with pytest.raises(InvalidRequest, match="one run"):
        llm.parallel(["x", "y"], stream=True)
    assert isinstance(stretto.parallel.Linear(0.1, 0.2), Linear)
