"""Paths through a lattice: Viterbi, the k best and drawn ones against all paths; what a reader sees."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import InvalidRequest
from stretto.hooks import Guidance
from stretto.parallel.lattice import Lattice
from stretto.parallel.output import BestPath
from stretto.parallel.types import Member, ParallelStep
from stretto.testing import END, byte_tokenizer, mock_llm

END_ID = byte_tokenizer().specials[END]
widths = st.lists(st.integers(1, 4), min_size=1, max_size=6)


def lattice_of(widths, seed, forbid=False):
    """Random sets: their tokens are small numbers, their edges random, some forbidden if asked for."""
    draw, steps, before = np.random.default_rng(seed), [], 1
    for at, width in enumerate(widths):
        logs = np.log(draw.random((before, width)))
        allowed = None
        if forbid:
            flags = draw.random((before, width)) < 0.7
            flags[0, 0] = True  # so that some path is left
            allowed = flags.tolist()
        members = [Member(10 * at + j, f"{at}{'abcd'[j]} ", 0.5) for j in range(width)]
        steps.append(ParallelStep(at, at, members, logprobs=logs.tolist(), allowed=allowed))
        before = width
    texts = {member.id: member.text for step in steps for member in step.members}
    return Lattice(steps, lambda tokens: "".join(texts[token] for token in tokens))


def counted_out(lattice):
    """All paths that are possible, the best first."""
    every = itertools.product(*[range(step.width) for step in lattice.steps])
    scored = [(lattice.logprob(list(path)), list(path)) for path in every]
    return sorted([one for one in scored if one[0] > -np.inf], key=lambda one: -one[0])


@given(widths, st.integers(0, 1 << 30), st.booleans())
def test_the_best_path_is_the_best_of_all(widths, seed, forbid):
    lattice = lattice_of(widths, seed, forbid)
    best = counted_out(lattice)[0]
    path = BestPath(delay=len(widths))
    decided = []
    for step in lattice.steps:
        path.add(step.path_logs())
        decided += path.settle()
    decided += path.settle(all_of_it=True)
    assert decided == best[1]
    assert path.logprob == pytest.approx(best[0])
    assert path.n_forced == 0


@given(widths, st.integers(0, 1 << 30), st.booleans(), st.integers(1, 12))
def test_the_best_few_are_the_best_few_of_all(widths, seed, forbid, k):
    lattice = lattice_of(widths, seed, forbid)
    found, every = lattice.paths(k), counted_out(lattice)
    assert [path.members for path in found] == [members for _, members in every[:k]]
    assert [path.logprob for path in found] == pytest.approx([score for score, _ in every[:k]])


@given(widths, st.integers(0, 1 << 30), st.integers(0, 3))
def test_what_is_decided_stays_and_is_a_prefix_of_what_was_the_best_path_then(widths, seed, delay):
    path, decided = BestPath(delay), []
    for step in lattice_of(widths, seed).steps:
        path.add(step.path_logs())
        best = decided + path.tail
        decided += path.settle()
        assert best[: len(decided)] == decided
        assert len(path.tail) <= delay
        assert decided + path.tail == best  # deciding never changes the best path
    assert len(decided + path.settle(all_of_it=True)) == len(widths)


def test_drawn_paths_come_by_their_probability():
    lattice = lattice_of([2, 3, 2], 5)
    every = counted_out(lattice)
    total = sum(np.exp(score) for score, _ in every)
    expected = {tuple(members): np.exp(score) / total for score, members in every}
    drawn = [tuple(lattice.sample(seed).members) for seed in range(2000)]
    for members, share in expected.items():
        assert drawn.count(members) / len(drawn) == pytest.approx(share, abs=4 * np.sqrt(share / 2000))
    assert lattice.sample(3) == lattice.sample(3)
    forbidden = lattice_of([2, 3, 2], 5, forbid=True)
    possible = [members for _, members in counted_out(forbidden)]
    assert all(forbidden.sample(seed).members in possible for seed in range(50))


def test_paths_that_a_grammar_refuses_are_left_out():
    lattice = lattice_of([2, 2, 2], 1)
    even = Lattice(lattice.steps, lattice.read, lambda tokens: sum(tokens) % 2 == 0)
    wanted = [members for _, members in counted_out(lattice) if sum(members) % 2 == 0]
    assert [path.members for path in even.paths(8)] == wanted
    assert sum(even.sample(7).tokens) % 2 == 0
    with pytest.raises(InvalidRequest, match="none of 1000 paths drawn fits the grammar"):
        Lattice(lattice.steps, lattice.read, lambda tokens: False).sample(1)
    for wrong in (0, 1025, "all"):
        with pytest.raises(InvalidRequest, match="k must be an integer from 1 to 1024"):
            lattice.paths(wrong)


# -- runs --


def doors(seen):
    """ "b" is less probable than "a", but what follows it is certain."""
    said = bytes(seen).decode().rpartition("x")[2]
    options = {"": {"a": 0.6, "b": 0.4}, "a": {"c": 0.3, "d": 0.3}, "b": {"c": 0.1, "e": 0.9}}.get(said)
    if options is None:
        options = {"f": 1.0} if len(said) in (2, 3) and not said.endswith("f") else {END: 1.0}
    row = np.full(258, -30.0, np.float32)
    for text, probability in options.items():
        row[END_ID if text == END else ord(text)] = np.log(probability)
    return row


@pytest.fixture
def llm():
    with mock_llm(doors) as llm:
        yield llm


def test_the_text_is_the_best_path_and_not_the_best_member_of_each_set(llm):
    run = llm.parallel("x", threshold=0.1)
    assert run.brackets.startswith("[a/b][")
    assert run.steps[0].best.text == "a"
    assert run.text.startswith("be")
    assert run.tokens[:2] == [ord("b"), ord("e")]
    assert [step.token for step in run.steps] == run.tokens
    assert run.paths(1)[0].text == run.text
    assert run.paths(1)[0].logprob == pytest.approx(run.logprob)
    assert run.paths(3)[1].logprob <= run.logprob
    assert run.sample_path(5) == run.sample_path(5)


def test_a_stream_gives_the_text_of_the_whole_run(llm):
    for delay in (0, 1, 2, 16):
        whole = llm.parallel("x", threshold=0.05, delay=delay)
        steps = list(llm.parallel("x", threshold=0.05, delay=delay, stream=True))
        assert "".join(step.text for step in steps) == whole.text
        assert [step.token for step in steps] == whole.tokens
    assert llm.parallel("x", threshold=0.1, delay=0).text.startswith("a")  # decided at once: the best member


def test_stops_and_hooks_follow_the_path_that_is_read(llm):
    run = llm.parallel("x", threshold=0.1, stop="e")
    assert (run.text, run.stop_reason) == ("b", "e")
    assert llm.parallel("x", threshold=0.1, stop="d").text.startswith("be")  # of another path
    seen = []
    llm.parallel("x", threshold=0.1, hooks=[lambda logits, tokens: seen.append(bytes(tokens).decode())])
    assert seen[:3] == ["x", "xa", "xbe"]  # the best path may change
    with llm.sequence("yx") as other:
        assert llm.parallel("x", threshold=0.1, hooks=[Guidance(other, scale=1.0)]).text == "bef"
        assert bytes(other.tokens).decode() == "yxbef"


def test_a_grammar_holds_on_every_path(llm):
    import stretto

    grammar = stretto.Grammar.regex("(a[cd]|bc)f")
    run = llm.parallel("x", threshold=0.05, grammar=grammar)
    fitting = {"acf", "adf", "bcf"}
    assert run.text in fitting
    assert {path.text for path in run.paths(64)} <= fitting
    assert len(run.paths(64)) >= 2
    assert all(run.sample_path(seed).text in fitting for seed in range(20))


def test_a_lattice_as_data_graph_and_page(llm):
    run = llm.parallel("x", threshold=0.1)
    data = json.loads(run.lattice.to_json())
    assert data["path"] == [step.chosen for step in run.steps]
    assert data["nodes"][0]["text"] == "a"
    assert {"from": [0, 1], "to": [1, 0]}.items() <= data["edges"][len(run.steps[1].members)].items()
    assert np.exp(data["edges"][0]["logprob"]) == pytest.approx(run.steps[1].edges[0][0])
    assert run.lattice.to_dot() == run.graph()
    page = run.lattice.to_html()
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page
    hostile = Lattice(
        [ParallelStep(0, 0, [Member(1, "</script><b>", 1.0)], logprobs=[[0.0]])], lambda tokens: ""
    )
    assert "</script><b>" not in hostile.to_html()


def test_the_delay_is_checked(llm):
    with pytest.raises(InvalidRequest, match="delay must be an integer from 0 to 4096"):
        llm.parallel("x", delay=-1)
