"""Pruning on SmolLM2 by the native backend: what it removes, what stays done, and the experiment about it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from parallel_oracle import isolated, recorded, sets_of, visible, who_sees_whom, with_cells

FILE = Path(__file__).parents[2] / "benchmarks" / "parallel.py"
PROMPTS = ["The cat sat", "My favourite colour is"]
MODES = {"isolated": isolated, "visible": visible}


@pytest.fixture(scope="module")
def study():
    """benchmarks/parallel.py, as a module."""
    spec = importlib.util.spec_from_file_location("parallel_study", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pruned:
    """A pruned run, its logits, and when which members left."""

    def __init__(self, llm, prompt, mode, options):
        self.tokens = llm.tokenizer.encode(prompt, special=True)
        self.used = []
        self.run, self.rows = recorded(llm, prompt, self._look, mode=mode, **options)
        self.steps, self.sees = self.run.steps[:-1], MODES[mode]
        self.gone_after = {
            (i, j): i + options["prune_after"]
            for i, step in enumerate(self.run.steps)
            for j, member in enumerate(step.members)
            if not member.kept
        }

    def _look(self, stream, step):
        self.used.append((stream.run.decoder.track.n_placed, stream.so_far.n_pruned))

    def mixture(self, rows, step):
        """The distribution after a set: of those of its members that stayed to the end."""
        stay = [i for i, member in enumerate(step.members) if member.kept]
        each = np.exp(rows - rows.max(axis=1, keepdims=True))
        each /= each.sum(axis=1, keepdims=True)
        weights = np.array([step.members[i].weight for i in stay], np.float32)
        return (weights / weights.sum()) @ each[stay]


@pytest.fixture(scope="module", params=MODES)
def case(request, llm, study):
    """A mode and its runs; the second has members that leave early enough to be compared."""
    runs = [Pruned(llm, prompt, request.param, study.PRUNED) for prompt in PROMPTS]
    steps = [step for one in runs for step in one.run.steps]
    assert sum(step.width > 1 for step in steps) >= 0.3 * len(steps)
    assert all(one.gone_after for one in runs)
    return request.param, runs


def test_later_logits_are_those_of_a_reprocess(case, again):
    for one in case[1]:
        rows, mask = who_sees_whom(one.tokens, one.steps, one.sees, one.gone_after)
        for ours, whole in zip(one.rows, sets_of(rows, with_cells(again, rows, mask)[0]), strict=True):
            np.testing.assert_array_equal(ours, whole)


def test_the_cells_of_those_removed_are_free(case):
    for one in case[1]:
        assert one.run.cells_freed == one.run.n_pruned == len(one.gone_after)
        assert all(step.best.kept for step in one.run.steps)
        taken = len(one.tokens)
        for step, (used, pruned) in zip(one.steps, one.used, strict=True):
            taken += step.width
            assert used == taken - pruned


def test_who_leaves_got_least(case, study):
    for one in case[1]:
        for step in one.run.steps[: -1 - study.PRUNED["prune_after"]]:
            if step.width > 1:
                shares = [member.attention for member in step.members]
                least = study.PRUNED["prune"] * np.mean(shares)
                assert [m.kept for m in step.members[1:]] == [share >= least for share in shares[1:]]


def without(one):
    """Rows and mask of the run as if the members that left had never been there."""
    rows, mask = who_sees_whom(one.tokens, one.steps, one.sees)
    stay = [r for r, row in enumerate(rows) if (row[2], row[3]) not in one.gone_after]
    return [rows[r] for r in stay], mask[np.ix_(stay, stay)]


def test_the_experiment_compares_the_right_distributions(case, llm, again, study):
    mode, runs = case
    for one in runs:
        pruned = study.after_sets(llm, one.tokens, one.steps, mode, "pruned")
        for ours, rows, step in zip(pruned, one.rows, one.steps, strict=True):
            np.testing.assert_allclose(ours, one.mixture(rows, step), rtol=1e-4, atol=1e-9)
        rows, mask = without(one)
        never = study.after_sets(llm, one.tokens, one.steps, mode, "without")
        for ours, exact, step in zip(
            never, sets_of(rows, with_cells(again, rows, mask)[0]), one.steps, strict=True
        ):
            each = study.distributions(exact)
            weights = np.array([member.weight for member in step.members if member.kept], np.float32)
            np.testing.assert_allclose(ours, (weights / weights.sum()) @ each, rtol=1e-4, atol=1e-9)
        unpruned = study.after_sets(llm, one.tokens, one.steps, mode, "unpruned")
        first = min(one.gone_after.values())
        for p, q in zip(pruned[: first + 1], unpruned[: first + 1], strict=True):
            np.testing.assert_array_equal(p, q)  # up to the decision nothing has left


def test_a_pruned_run_is_not_a_run_without_the_member(case, llm, study):
    mode, runs = case
    kls = []
    for one in runs:
        begin = min(one.gone_after.values()) + 1
        pruned, never = (
            study.after_sets(llm, one.tokens, one.steps, mode, how)[begin:] for how in ("pruned", "without")
        )
        assert pruned
        for p, q in zip(pruned, never, strict=True):
            assert p.sum() == pytest.approx(1, abs=1e-4)
            assert q.sum() == pytest.approx(1, abs=1e-4)
            kl = study.divergence(p, q)
            assert np.isfinite(kl)
            assert kl > 1e-5
            assert study.divergence(p, p) == 0
        kls.append(np.mean([study.divergence(p, q) for p, q in zip(pruned, never, strict=True)]))
    found = study.pruning(llm, PROMPTS, mode, np.random.default_rng(0))
    assert found["prompts"] == len(PROMPTS)
    assert found["without"][0] == pytest.approx(np.mean(kls), rel=1e-6)
    mean, low, high = found["without"]
    assert 0 < low <= mean <= high
    assert found["share"][0] > 0


def test_divergence(study):
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.5, 0.25])
    assert study.divergence(p, q) == pytest.approx(0.5 * np.log(2))
    assert study.divergence(p, p) == 0
    mean, low, high = study.interval([1.0, 2.0, 3.0], np.random.default_rng(0))
    assert (mean, low < 2.0 < high) == (2.0, True)
