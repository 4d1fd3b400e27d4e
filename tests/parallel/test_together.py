"""Several runs and ordinary requests in one batch: each is what it is alone, attention and pruning too."""

from itertools import zip_longest

import numpy as np
import pytest

import stretto
from parallel_oracle import tiny_llm
from tiny_models import tiny_backend

TEXTS = ["The cat sat", "My favourite colour is", "The best way to"]
BYTES = [[5, 60, 17, 33, 2], [7, 8, 9], [3, 90, 41]]
# What is measured differs from run to run: whole attention, attention to some cells, both, nothing.
MEASURED = [
    {"mode": "isolated", "attention": True, "prune": 0.95, "prune_after": 2},
    {"mode": "visible", "prune": 0.9, "prune_after": 3},
    {"mode": "isolated", "prune": 0.95, "prune_after": 1, "combine": "best"},
    {"mode": "visible", "attention": True},
    {"mode": "isolated"},
]


@pytest.fixture(params=["native", "reference"], scope="module")
def case(request, smollm2_path):
    """A model, prompts for it, the threshold for wide sets, and how far numbers may be apart."""
    if request.param == "native":
        with stretto.load(smollm2_path, cells=1024) as llm:
            yield llm, TEXTS, 0.08, 0.0
    else:
        with tiny_llm(tiny_backend("llama", 1024)) as llm:
            yield llm, BYTES, 0.02, 2e-5


def compare(ours, theirs, within):
    assert (ours.finish_reason, ours.cells_freed) == (theirs.finish_reason, theirs.cells_freed)
    for mine, other in zip(ours.steps, theirs.steps, strict=True):
        assert mine.position == other.position
        assert [(m.id, m.kept) for m in mine.members] == [(m.id, m.kept) for m in other.members]
        for m, o in zip(mine.members, other.members, strict=True):
            assert (m.probability, m.weight) == pytest.approx((o.probability, o.weight), rel=0, abs=within)
            assert m.attention == (None if o.attention is None else pytest.approx(o.attention, 0, within))
        assert (mine.attention is None) == (other.attention is None)
        if mine.attention is not None:
            assert mine.attention.tokens.tolist() == other.attention.tokens.tolist()
            assert mine.attention.positions.tolist() == other.attention.positions.tolist()
            np.testing.assert_allclose(mine.attention.weights, other.attention.weights, rtol=0, atol=within)
            np.testing.assert_allclose(mine.attention.weights.sum(axis=-1), 1, atol=1e-5)


def test_each_is_what_it_is_alone(case):
    llm, prompts, threshold, within = case
    common = {"threshold": threshold, "max_width": 4, "max_tokens": 14, "ignore_eos": True}
    asked = [(prompt, {**common, **options}) for prompt in prompts for options in MEASURED]
    greedy = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
    alone = [llm.parallel(prompt, **options) for prompt, options in asked]
    texts = [llm.generate(prompt, **greedy).tokens for prompt in prompts]
    steps = [step for run in alone for step in run.steps]
    assert sum(step.width > 1 for step in steps) >= 0.3 * len(steps)
    for (_, options), run in zip(asked, alone, strict=True):
        assert bool(run.n_pruned) == ("prune" in options)
    sizes = []
    forward = llm.backend.forward
    llm.backend.forward = lambda batch: sizes.append(len(batch)) or forward(batch)
    try:
        # They begin at different steps, so that sets of all ages meet in a batch.
        runs, requests = [], []
        for one, prompt in zip_longest(asked, prompts):
            runs.append(llm.parallel(one[0], stream=True, **one[1]))
            if prompt is not None:
                requests.append(llm.stream(prompt, **greedy))
            next(runs[0], None)
        together = [run.result for run in runs]
        answers = [request.result.tokens for request in requests]
    finally:
        del llm.backend.forward
    assert max(sizes) > 20  # they really were in one batch
    assert answers == texts
    for ours, theirs in zip(together, alone, strict=True):
        compare(ours, theirs, within)
    assert llm.cache.stats().held == 0
    llm.cells.check()


def test_a_list_of_prompts_is_one_batch(case):
    llm, prompts, threshold, within = case
    for options in MEASURED[:2]:
        options = {**options, "threshold": threshold, "max_tokens": 10, "ignore_eos": True}
        for ours, prompt in zip(llm.parallel(prompts, **options), prompts, strict=True):
            compare(ours, llm.parallel(prompt, **options), within)
