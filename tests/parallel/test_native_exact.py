"""What a set is, bit for bit: runs of SmolLM2 by the native backend, of which many steps are wide."""

import numpy as np
import pytest

from parallel_oracle import isolated, recorded, sets_of, visible, who_sees_whom, with_cells
from stretto.backends.batch import Batch
from stretto.parallel.sets import SetSource
from stretto.sampling.sampler import RandomStream

PROMPTS = ["The cat sat", "My favourite colour is", "The best way to"]
OPTIONS = {"threshold": 0.08, "max_width": 4, "max_tokens": 16, "ignore_eos": True}
MODES = {"isolated": isolated, "visible": visible}
BY_HAND = 7  # a sequence of our own


class Seen:
    """A run with all that can be seen of it: logits, and of each step's cells K, V and positions."""

    def __init__(self, llm, prompt, mode):
        self.prompt = llm.tokenizer.encode(prompt, special=True)
        self.data, self.positions, self.plain, self._llm = [], [], {}, llm
        self.run, self.rows = recorded(llm, prompt, self._look, mode=mode, attention=True, **OPTIONS)
        self.steps = self.run.steps[:-1]  # those that were computed
        self.matrix = MODES[mode]

    def _look(self, stream, step):
        cells = np.array([member.cell for member in step.members], np.int32)
        self.data.append(self._llm.backend.read_cells(cells).copy())
        self.positions.append(self._llm._engine.cells.positions[cells].tolist())
        following = stream.run.output.steps[-1]  # chosen, not yet computed
        if following.width == 1:
            self.plain[following.index] = self._as_a_plain_token(stream, following)

    def _as_a_plain_token(self, stream, step):
        """The logits of a step of one token, computed as an ordinary token of the same past."""
        engine, batch = self._llm._engine, Batch()
        engine.cells.copy(stream.run.decoder.track.id, BY_HAND)
        batch.add(step.best.id, step.position, [BY_HAND], logits=True)
        logits = engine.runner.forward(batch)[0]
        engine.cells.remove(BY_HAND)
        return logits


@pytest.fixture(scope="module")
def seen(llm):
    """All runs, by mode; nothing below means much unless many of their steps are wide."""
    found = {mode: [Seen(llm, prompt, mode) for prompt in PROMPTS] for mode in MODES}
    for runs in found.values():
        steps = [step for one in runs for step in one.run.steps]
        assert sum(step.width > 1 for step in steps) >= 0.3 * len(steps)
    return found


@pytest.fixture(params=MODES)
def runs(request, seen):
    return seen[request.param]


def same(found, expected):
    np.testing.assert_array_equal(found, expected)


def wide(one):
    return [step for step in one.steps if step.width > 1]


def own_attention(step):
    """float32[n_layer, n_head, members, members]: of each member to each, in the order of the set."""
    cells = step.attention.cells.tolist()
    return step.attention.weights[..., [cells.index(member.cell) for member in step.members]]


def test_members_stand_at_one_position_and_the_next_step_at_the_next(runs):
    for one in runs:
        begin = len(one.prompt)
        assert [step.position for step in one.run.steps] == list(range(begin, begin + 16))
        assert one.positions == [[step.position] * step.width for step in one.steps]


def test_merging_is_reprocessing_everything_with_the_mask(runs, again):
    for one in runs:
        rows, mask = who_sees_whom(one.prompt, one.steps, one.matrix)
        logits, data = with_cells(again, rows, mask)
        for ours, whole in zip(one.rows, sets_of(rows, logits), strict=True):
            same(ours, whole)
        for ours, whole in zip(one.data, sets_of(rows, data), strict=True):
            same(ours, whole)


def test_the_mask_matters(seen, again):
    # The same oracle with the other mode's mask gives other bits: it can tell them apart.
    one = seen["isolated"][0]
    rows, mask = who_sees_whom(one.prompt, one.steps, visible)
    logits, data = with_cells(again, rows, mask)
    at = wide(one)[0].index
    assert (sets_of(rows, logits)[at] != one.rows[at]).any()
    assert (sets_of(rows, data)[at] != one.data[at]).any()


def test_an_isolated_member_is_what_it_is_alone_at_its_step(seen, again):
    for one in seen["isolated"][:2]:
        for step in wide(one):
            for j, member in enumerate(step.members):
                rows, mask = who_sees_whom(one.prompt, one.steps[: step.index], isolated)
                past = len(rows)
                rows = [*rows, (member.id, step.position, step.index, 0)]
                mask = np.pad(mask, (0, 1))
                mask[past] = True
                logits, data = with_cells(again, rows, mask)
                same(one.rows[step.index][j], logits[past])
                same(one.data[step.index][j], data[past])


def test_isolated_siblings_get_exactly_nothing(seen):
    for one in seen["isolated"]:
        for step in wide(one):
            weights = own_attention(step)
            assert (weights[:, :, ~np.eye(step.width, dtype=bool)] == 0).all()
            assert (weights[:, :, np.eye(step.width, dtype=bool)] > 0).all()


def test_visible_siblings_all_look_at_each_other(seen):
    for one in seen["visible"]:
        for step in wide(one):
            weights = own_attention(step)
            assert (weights > 0).all()
            assert weights[:, :, ~np.eye(step.width, dtype=bool)].mean() > 1e-3


def test_rows_of_attention_sum_to_1(runs):
    for one in runs:
        for step in one.steps:
            np.testing.assert_allclose(step.attention.weights.sum(axis=-1), 1, atol=1e-5)


def test_a_step_of_one_is_an_ordinary_step(runs):
    n = 0
    for one in runs:
        for index, logits in one.plain.items():
            if index < len(one.steps):
                same(one.rows[index][0], logits)
                n += any(step.width > 1 for step in one.steps[:index])
    assert n >= 5  # also behind sets


def test_the_modes_differ(seen):
    for apart, together in zip(seen["isolated"], seen["visible"], strict=True):
        first, other = wide(apart)[0], wide(together)[0]
        assert [m.id for m in first.members] == [m.id for m in other.members]  # up to here all is the same
        assert np.abs(first.attention.weights - other.attention.weights).max() > 0.01
        assert np.abs(apart.rows[first.index] - together.rows[other.index]).max() > 0.1


@pytest.mark.parametrize("mode", MODES)
def test_the_order_of_a_set_does_not_matter(llm, mode):
    # The same tokens in another order give the same logits, attention, K and V in that order.
    tokens, orders = [40, 7, 300, 12], ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0])
    found = []
    for order in orders:
        runner = llm.engine.runner
        sequence = SetSource(runner, runner.new_track([5, 6, 7], RandomStream(0)))
        runner.run([(sequence, 3)])
        sequence.watching = True
        sequence.push([tokens[i] for i in order], np.eye(4, dtype=bool) if mode == "isolated" else None)
        runner.run([(sequence, 4)])
        cells = sequence.map_cells(3)
        data = llm.backend.read_cells(np.array([cells[tokens[i]] for i in order], np.int32)).copy()
        found.append((sequence.rows.copy(), data, sequence.attention.weights.copy()))
        sequence.push([9], None)  # and what follows does not know the order
        runner.run([(sequence, 1)])
        found[-1] += (sequence.rows.copy(),)
        sequence.close()
    rows, data, weights, after = found[0]
    for order, (other_rows, other_data, other_weights, other_after) in zip(orders, found, strict=True):
        same(other_rows, rows[order])
        same(other_data, data[order])
        same(other_weights, weights[:, :, order])
        same(other_after, after)
