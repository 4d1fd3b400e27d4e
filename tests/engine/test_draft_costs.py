"""Drafts that have to pay: costs of rows, odds of drafts, and texts that stay the same whatever is chosen."""

from functools import partial

import pytest

from stretto.backends.eagle import open_eagle_head
from stretto.backends.native import NativeBackend
from stretto.backends.next_layer import find_next_head
from stretto.drafts import AutoDrafts
from stretto.engine import next_tokens
from stretto.engine.draft_costs import Odds, RowCosts, best_length
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.testing import byte_tokenizer, mock_llm
from tiny_heads import head_config, head_tensors, write_head
from tiny_models import tiny_file, tiny_spec

PROMPT = [1, 2, 3, 4, 5, 6, 7]
REPEATED = [5, 6, 7, 8, 9] * 4


def fitted(fixed, each, rows=(1, 1, 3, 1, 5, 1, 2, 1) * 8):
    costs = RowCosts()
    for n in rows:
        costs.note(n, fixed + each * n)
    return costs


class Fixed(RowCosts):
    """Costs that no pass changes."""

    def __init__(self, fixed, each):
        super().__init__()
        self.fixed, self.each = fixed, each

    def note(self, rows, seconds):
        pass

    def seconds(self, rows):
        return self.fixed + self.each * rows


def language_model(name="llama", **found):
    file, spec = tiny_file(name), tiny_spec(name)

    def make(file, spec, n_cells):
        return NativeBackend(file, spec, n_cells, 1, repack=False, n_slots=32)

    backend = make(file, spec, 512)
    backend.next_head = find_next_head(file, spec, make)
    backend.open_head = partial(open_eagle_head, file.path, spec, make)
    llm = LLM(backend, byte_tokenizer())
    llm.engine.runner.row_costs = found.get("costs")
    return llm


@pytest.mark.parametrize(("fixed", "each"), [(1.0, 0.0), (1.0, 0.1), (0.2, 1.0)])
def test_costs_of_rows_are_those_of_passes(fixed, each):
    costs = fitted(fixed, each)
    for rows in (1, 2, 4, 8):
        assert costs.seconds(rows) == pytest.approx(fixed + each * rows, rel=0.1)


def test_costs_follow_passes_that_become_slower_and_outlive_interrupted_ones():
    costs = fitted(1.0, 0.1)
    before = costs.seconds(1)
    costs.note(1, 1e6)
    assert costs.seconds(1) < 1.2 * before
    for _ in range(200):
        costs.note(1, 3.0)
    assert costs.seconds(1) == pytest.approx(3.0, rel=0.05)
    assert RowCosts().seconds(4) == 0


def test_odds_follow_what_was_accepted_and_fade():
    odds = Odds()
    assert odds.probability == 0.6
    for _ in range(30):
        odds.learn(4, 4)
    assert odds.probability > 0.95
    for _ in range(30):
        odds.learn(4, 0)
    assert odds.probability < 0.25
    for _ in range(1000):
        odds.fade()
    assert odds.probability == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize(
    ("each", "probability", "n_running", "length"),
    [
        (0.0, 0.9, 1, 8),  # rows are free
        (0.0, 0.9, 17, 8),  # beside many others too
        (0.2, 0.9, 17, 0),  # not so here: they wait for rows that are often rejected
        (0.02, 0.95, 17, 8),
        (1.0, 0.4, 1, 0),  # each row costs as much as the rest of a pass
        (0.1, 0.05, 1, 0),
    ],
)
def test_drafts_are_as_long_as_they_pay(each, probability, n_running, length):
    found, gain = best_length(Fixed(1.0, each), probability, 8, n_running)
    assert (found > 0) == (length > 0)
    assert found == length or 0 < found < length
    assert gain > 1.0 if found else gain == 1.0


def test_what_drafting_takes_counts():
    assert best_length(Fixed(1.0, 0.01), 0.8, 4, 1)[0] > 0
    assert best_length(Fixed(1.0, 0.01), 0.8, 4, 1, token_seconds=2.0) == (0, 1.0)
    assert best_length(RowCosts(), 0.8, 4, 1) == (1, 1.0)  # nothing is measured yet


AGAIN = {"logit_bias": {9: 100.0}}  # a text that repeats itself


@pytest.mark.parametrize("options", [{"temperature": 0, **AGAIN}, {"seed": 3, "temperature": 50}])
@pytest.mark.parametrize("each", [0.0, 0.05, 5.0])
@pytest.mark.parametrize("name", ["llama", "glm4moe"])
def test_the_same_text_whatever_rows_cost(name, each, options, monkeypatch):
    monkeypatch.setattr(next_tokens, "LEAST", 0.0)
    options = {**options, "max_tokens": 30, "ignore_eos": True}
    with language_model(name, costs=Fixed(1.0, each)) as llm:
        prompts = [REPEATED, PROMPT, REPEATED[:7]]
        plain = llm.generate(prompts, **options)
        llm.cache.clear()
        drafted = llm.generate(prompts, draft="auto", **options)
        assert [one.tokens for one in drafted] == [one.tokens for one in plain]
        n_drafted = sum(one.usage.drafted_tokens for one in drafted)
        assert n_drafted == 0 if each == 5.0 else n_drafted > 0 or "seed" in options
        assert llm.cache.stats().held == 0


def test_beside_many_others_drafts_stop_where_rows_cost():
    options = {"max_tokens": 20, "ignore_eos": True, "temperature": 0, "draft": "auto", **AGAIN}
    drafted = {}
    for each in (0.0, 0.5):
        with language_model(costs=Fixed(1.0, each)) as llm:
            alone = llm.generate(REPEATED, **options)
            several = llm.generate([[10 + i, 5, 6, 7] for i in range(17)], **options)
            drafted[each] = sum(one.usage.drafted_tokens for one in several)
            assert alone.usage.drafted_tokens > 0 or each
    assert drafted[0.0] > 100
    assert drafted[0.5] == 0


def test_a_head_that_does_not_pay_is_left_out(tmp_path):
    spec = tiny_spec("llama")
    weights = head_tensors(spec, 20)
    path = write_head(tmp_path, weights, head_config(spec, weights))
    with language_model(costs=Fixed(1.0, 5.0)) as llm:
        options = {"max_tokens": 100, "ignore_eos": True, "temperature": 0}
        stream = llm.stream(PROMPT, draft=AutoDrafts(path), **options)
        first = next(iter(stream))
        (cells,) = llm.engine.runner.heads.values()
        assert len(cells.texts) == 1
        rest = [token.id for token in stream]
        assert not cells.texts
        assert [first.id, *rest] == llm.generate(PROMPT, **options).tokens
        assert stream.result.usage.drafted_tokens == 0


def test_costs_are_measured_while_drafts_have_to_pay():
    with mock_llm("abcabcabcabcabcabcabcabc") as llm:
        assert llm.engine.runner.row_costs is None
        plain = llm.generate("abcabc", max_tokens=12, temperature=0)
        assert llm.engine.runner.row_costs is None
        drafted = llm.generate("abcabc", max_tokens=12, temperature=0, draft="auto")
        assert drafted.tokens == plain.tokens
        assert llm.engine.runner.row_costs.seconds(1) > 0


def test_trees_are_not_chosen_among():
    with mock_llm("abc") as llm, pytest.raises(InvalidRequest, match="AutoDrafts drafts one continuation"):
        llm.generate("a", draft="auto", draft_branches=2)
