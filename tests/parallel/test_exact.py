"""Parallel runs against a dense mask made by hand, on tiny models by the reference backend."""

from itertools import islice

import numpy as np
import pytest

from parallel_oracle import by_mask, isolated, recorded, sets_of, tiny_llm, visible, who_sees_whom
from stretto.errors import InvalidRequest
from tiny_models import tiny_backend

PROMPT = [5, 60, 17, 33, 2]
OPTIONS = {"threshold": 0.02, "max_width": 3, "max_tokens": 12, "ignore_eos": True}
MODES = {"isolated": isolated, "visible": visible}


def chain(i, j):
    """Each sees those that are more probable."""
    return j <= i


@pytest.fixture(params=["llama", "gemma3", "qwen3"])
def name(request):
    return request.param


@pytest.fixture
def llm(name):
    return tiny_llm(tiny_backend(name, 256))


@pytest.mark.parametrize("mode", ["isolated", "visible", "chain", "function"])
def test_a_run_is_what_the_mask_says(llm, name, mode):
    sees = MODES.get(mode, chain)
    given = np.tril(np.ones((3, 3), bool)) if mode == "chain" else mode
    if mode == "function":

        def given(members):
            assert [m.probability for m in members] == sorted((m.probability for m in members), reverse=True)
            return np.tril(np.ones((len(members), len(members)), bool))

    run, found = recorded(llm, PROMPT, mode=given, attention=True, **OPTIONS)
    assert run.parallel_share >= 0.3
    rows, mask = who_sees_whom(PROMPT, run.steps[:-1], sees)
    logits, weights = by_mask(tiny_backend(name, 256), rows, mask)
    for ours, exact in zip(found, sets_of(rows, logits), strict=True):
        np.testing.assert_allclose(ours, exact, atol=2e-5)
    # The next set comes from the mixture of these distributions.
    for ours, step, following in zip(found, run.steps, run.steps[1:], strict=False):
        each = np.exp(ours.astype(float) - ours.max(axis=1, keepdims=True))
        each /= each.sum(axis=1, keepdims=True)
        shares = np.array([member.probability for member in step.members])
        mixed = (shares / shares.sum()) @ each
        expected = np.argsort(-mixed, kind="stable")[:3]
        kept = [int(token) for token in expected if mixed[token] >= 0.02] or [int(expected[0])]
        assert [member.id for member in following.members] == kept
        assert [m.probability for m in following.members] == pytest.approx(mixed[kept].tolist(), abs=1e-6)
    # Attention, cell by cell.
    for i, step in enumerate(run.steps[:-1]):
        mine = [r for r, row in enumerate(rows) if row[2] == i]
        before = [r for r, row in enumerate(rows) if row[2] <= i]
        order = sorted(before, key=lambda r: (rows[r][1], rows[r][0]))
        np.testing.assert_allclose(step.attention.weights, weights[:, :, mine][..., order], atol=2e-5)
        assert step.attention.tokens.tolist() == [rows[r][0] for r in order]
        np.testing.assert_allclose(step.attention.weights.sum(axis=-1), 1, atol=1e-5)


def test_positions_and_cells(llm):
    for mode in MODES:
        run = llm.parallel(PROMPT, mode=mode, **OPTIONS)
        assert [step.position for step in run.steps] == list(range(5, 17))
        assert [step.index for step in run.steps] == list(range(12))
        cells = [member.cell for step in run.steps[:-1] for member in step.members]
        assert len(set(cells)) == len(cells)
        assert None not in cells
        assert [member.cell for member in run.steps[-1].members] == [None] * run.steps[-1].width
        assert run.finish_reason == "length"
        assert llm.cache.stats().held == 0
        llm.cells.check()


def test_siblings_see_each_other_or_not(llm):
    runs = {mode: llm.parallel(PROMPT, mode=mode, attention=True, **OPTIONS) for mode in MODES}
    for mode, run in runs.items():
        for step in run.steps[:-1]:
            among = step.attention.weights[..., -step.width :]  # [n_layer, n_head, members, siblings]
            order = np.argsort([member.id for member in step.members]).argsort()
            among = among[..., order]
            siblings = among[:, :, ~np.eye(step.width, dtype=bool)]
            assert (siblings > 0).all() if mode == "visible" else (siblings == 0).all()
            assert (among[:, :, np.eye(step.width, dtype=bool)] > 0).all()
    first, second = (run.steps[0] for run in runs.values())
    assert [m.id for m in first.members] == [m.id for m in second.members]
    assert first.width > 1
    assert np.abs(first.attention.weights - second.attention.weights).max() > 1e-3


def test_attention_may_be_kept_as_its_mean(llm):
    whole = llm.parallel(PROMPT, attention=True, **OPTIONS)
    brief = llm.parallel(PROMPT, attention="mean", **OPTIONS)
    for ours, theirs in zip(brief.steps[:-1], whole.steps[:-1], strict=True):
        mean = theirs.attention.weights.mean((0, 1), keepdims=True)
        np.testing.assert_allclose(ours.attention.weights, mean, atol=1e-6)
    with pytest.raises(InvalidRequest, match="True, False or 'mean'"):
        llm.parallel(PROMPT, attention="all")


def test_the_modes_differ(llm):
    (_, apart), (_, together) = (recorded(llm, PROMPT, mode=mode, **OPTIONS) for mode in MODES)
    assert len(apart[0]) > 1
    assert np.abs(apart[0] - together[0]).max() > 1e-3


def test_a_member_is_what_it_is_alone(llm, name):
    stream = llm.parallel(PROMPT, stream=True, mode="isolated", **OPTIONS)
    step = next(stream)
    next(stream)
    backend = llm.backend
    among = backend.read_cells(np.array([member.cell for member in step.members], np.int32))
    for member, ours in zip(step.members, among, strict=True):
        other = tiny_llm(tiny_backend(name, 256))
        with other.sequence([*PROMPT, member.id]) as alone:
            alone.logits  # noqa: B018
            cell = other.cells.view(alone.id)[-1:]
            theirs = other.backend.read_cells(cell)[0]
        np.testing.assert_allclose(ours.view(np.float32), theirs.view(np.float32), atol=2e-5)
    stream.cancel()


def test_threshold_1_is_greedy(llm):
    greedy = llm.generate(PROMPT, temperature=0, max_tokens=12, ignore_eos=True)
    for mode in MODES:
        run = llm.parallel(PROMPT, mode=mode, **{**OPTIONS, "threshold": 1.0})
        assert run.tokens == greedy.tokens
        assert run.text == run.raw == greedy.text
        assert run.brackets == greedy.text.replace("\\", "\\\\").replace("[", "\\[")
        assert run.mean_width == 1
    assert llm.parallel(PROMPT, **{**OPTIONS, "temperature": 0}).tokens == greedy.tokens


@pytest.mark.parametrize("mode", MODES)
def test_pruning(llm, name, mode):
    run, found = recorded(llm, PROMPT, mode=mode, prune=0.95, prune_after=2, **OPTIONS)
    gone = {
        (i, j): i + 2
        for i, step in enumerate(run.steps)
        for j, member in enumerate(step.members)
        if not member.kept
    }
    assert gone
    assert run.n_pruned == run.cells_freed == len(gone)
    assert all(step.best.kept for step in run.steps)
    rows, mask = who_sees_whom(PROMPT, run.steps[:-1], MODES[mode], gone)
    logits, weights = by_mask(tiny_backend(name, 256), rows, mask)
    for ours, exact in zip(found, sets_of(rows, logits), strict=True):
        np.testing.assert_allclose(ours, exact, atol=3e-5)
    # What was measured is the mean over layers, heads and the tokens of two steps.
    for i, step in enumerate(run.steps[:-3]):
        later = [r for r, row in enumerate(rows) if i < row[2] <= i + 2]
        mine = [r for r, row in enumerate(rows) if row[2] == i]
        shares = weights[:, :, later][..., mine].mean(axis=(0, 1, 2))
        if step.width > 1:
            assert [member.attention for member in step.members] == pytest.approx(shares.tolist(), abs=1e-5)
            least = 0.95 * shares.mean()
            assert [m.kept for m in step.members[1:]] == [bool(share >= least) for share in shares[1:]]


def test_pruned_cells_are_free(llm):
    stream = llm.parallel(PROMPT, stream=True, delay=0, prune=0.95, prune_after=2, **OPTIONS)
    for step in islice(stream, 11):
        taken = sum(s.width for s in stream.so_far.steps[: step.index])
        assert llm.cells.n_used == len(PROMPT) + taken - stream.so_far.n_pruned
        llm.cells.check()
    assert stream.result.n_pruned


def test_one_forward_pass_a_step(llm, monkeypatch):
    sizes = []
    forward = llm.backend.forward
    monkeypatch.setattr(llm.backend, "forward", lambda batch: sizes.append(len(batch)) or forward(batch))
    run = llm.parallel(PROMPT, **OPTIONS)
    assert sizes == [len(PROMPT), *[step.width for step in run.steps[:-1]]]
    sizes.clear()
    llm.cache.clear()
    runs = llm.parallel([PROMPT, [7, 8, 9], [3]], mode="visible", **OPTIONS)
    widths = [sum(run.steps[i].width for run in runs) for i in range(11)]
    assert sizes == [len(PROMPT) + 4, *widths]
