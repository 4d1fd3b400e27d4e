"""Runs that have to give their cells up: their sets are computed again, and nothing is lost."""

import numpy as np
import pytest

import stretto
from parallel_oracle import recorded, tiny_llm
from stretto.backends.native import NativeBackend
from stretto.testing import mock_llm
from tiny_models import tiny_backend, tiny_file, tiny_spec

PROMPTS = ["The cat sat", "My favourite colour is", "The best way to"]
OPTIONS = {"threshold": 0.05, "max_width": 4, "max_tokens": 20, "ignore_eos": True}
MODES = {
    "isolated": "isolated",
    "visible": "visible",
    "chain": np.tril(np.ones((4, 4), bool)),
}
TINY = {"threshold": 0.02, "max_width": 3, "max_tokens": 14, "ignore_eos": True}


def facts(run):
    """All that a run says, but for the cells."""
    return [
        (step.position, step.edges, [(m.id, m.probability, m.kept, m.attention) for m in step.members])
        for step in run.steps
    ]


def same_attention(one, other):
    assert len(one.steps) == len(other.steps)
    for ours, theirs in zip(one.steps, other.steps, strict=True):
        assert (ours.attention is None) == (theirs.attention is None)
        if ours.attention is not None:
            np.testing.assert_array_equal(ours.attention.weights, theirs.attention.weights)
            assert ours.attention.tokens.tolist() == theirs.attention.tokens.tolist()


@pytest.fixture(scope="module")
def roomy(smollm2_path):
    with stretto.load(smollm2_path, cells=1024) as found:
        yield found


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("mode", "prune", "prefix_cache"),
    [("isolated", None, True), ("isolated", 0.9, False), ("visible", 0.9, True), ("visible", None, False)],
)
def test_a_run_in_a_full_cache_is_the_run_alone(roomy, smollm2_path, mode, prune, prefix_cache):
    options = {**OPTIONS, "mode": mode, "prune": prune, "attention": True}
    alone = roomy.parallel(PROMPTS, **options)
    steps = [step for run in alone for step in run.steps]
    assert sum(step.width > 1 for step in steps) >= 0.3 * len(steps)
    text = roomy.generate("Once upon a time", temperature=0, max_tokens=20, ignore_eos=True).text
    with stretto.load(smollm2_path, cells=96, prefix_cache=prefix_cache) as llm:
        request = llm.stream("Once upon a time", temperature=0, max_tokens=20, ignore_eos=True)
        found = llm.parallel(PROMPTS, **options)
        assert llm.metrics.preempted
        assert request.result.text == text
        for ours, theirs in zip(found, alone, strict=True):
            assert (ours.finish_reason, ours.stop_reason) == ("length", None)
            assert facts(ours) == facts(theirs)
            assert (ours.brackets, ours.cells_freed) == (theirs.brackets, theirs.cells_freed)
            same_attention(ours, theirs)
        assert llm.cache.stats().held == 0
        llm.cells.check()


def tiny_native(**options):
    return tiny_llm(NativeBackend(tiny_file("llama"), tiny_spec("llama"), 256, 2), **options)


@pytest.mark.parametrize("after", range(12))
@pytest.mark.parametrize("mode", MODES)
def test_cells_given_up_at_any_step(after, mode):
    with tiny_native() as llm:
        options = {**TINY, "mode": MODES[mode], "prune": 0.95, "prune_after": 2, "attention": True}
        alone, rows = recorded(llm, [5, 60, 17, 33, 2], **options)
        assert alone.parallel_share >= 0.3
        assert alone.n_pruned
        llm.cache.clear()
        found = []
        stream = llm.parallel([5, 60, 17, 33, 2], stream=True, delay=0, **options)
        for step in stream:
            if step.index:
                found.append(stream.run.decoder.source.rows.copy())
            if step.index == after:
                with llm.engine.lock:
                    stream.run.decoder.preempt()
        run = stream.result
        assert facts(run) == facts(alone)
        same_attention(run, alone)
        for ours, theirs in zip(found, rows, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert llm.cache.stats().held == 0


def test_members_know_their_new_cells():
    with tiny_native() as llm:
        stream = llm.parallel([5, 60, 17, 33, 2], stream=True, delay=0, **TINY)
        for step in stream:
            if step.index == 5:
                with llm.engine.lock:
                    stream.run.decoder.preempt()
                    llm.cache.clear()
                    other = llm.sequence(list(range(40)))
                    other.logits  # noqa: B018  # takes the cells that were theirs
            if step.index == 8:
                break
        for step in stream.so_far.steps[:8]:
            cells = [member.cell for member in step.members]
            assert llm.engine.cells.tokens[cells].tolist() == [member.id for member in step.members]
            assert set(llm.engine.cells.positions[cells].tolist()) == {step.position}
        stream.cancel()
        other.close()


def test_the_reference_backend_computes_them_again_too():
    llm = tiny_llm(tiny_backend("gemma3", 256))
    options = {**TINY, "prune": 0.95, "prune_after": 2}
    alone = llm.parallel([5, 60, 17, 33, 2], **options)
    stream = llm.parallel([5, 60, 17, 33, 2], stream=True, **options)
    for step in stream:
        if step.index in (4, 9):
            with llm.engine.lock:
                stream.run.decoder.preempt()
    assert alone.n_pruned
    for ours, theirs in zip(stream.result.steps, alone.steps, strict=True):
        assert [(m.id, m.kept) for m in ours.members] == [(m.id, m.kept) for m in theirs.members]
        assert [m.probability for m in ours.members] == pytest.approx(
            [m.probability for m in theirs.members], abs=1e-5
        )


def test_several_sets_are_computed_in_one_pass(monkeypatch):
    with tiny_native(prefix_cache=False) as llm:
        stream = llm.parallel([5, 60, 17, 33, 2], stream=True, delay=0, **TINY)
        steps = [next(stream) for _ in range(10)]
        passes = []
        forward = llm.backend.forward
        monkeypatch.setattr(llm.backend, "forward", lambda batch: passes.append(len(batch)) or forward(batch))
        with llm.engine.lock:
            stream.run.decoder.preempt()
        next(stream)
        widths = [step.width for step in steps]
        first = next(i for i, width in enumerate(widths) if width > 1)  # those before it are a prompt
        assert passes == [5 + first, sum(widths[first:-1]), widths[-1]]
        stream.cancel()


def test_logits_given_to_a_run_are_kept():
    with tiny_native() as llm, llm.sequence([5, 60, 17]) as seq:
        best = int(seq.logits.argmax())
        seq.logits[best] = -np.inf
        alone = llm.parallel(seq, **TINY)
        stream = llm.parallel(seq, stream=True, **TINY)
        stream.run.decoder.preempt()  # before its first step
        assert facts(stream.result) == facts(alone)
        assert best not in [member.id for member in alone.steps[0].members]


def endless(seen):
    row = np.full(258, -1e9, np.float32)
    row[[97, 98]] = 0.0
    return row if ord("x") in seen else ord("z")


def test_the_youngest_waits_whatever_it_is():
    llm = mock_llm(endless, cells=64)
    first = llm.parallel("x", stream=True, max_tokens=24)
    next(first)
    request = llm.stream("y", temperature=0, max_tokens=30)
    second = llm.parallel("x", stream=True, max_tokens=20)
    assert second.result.brackets == "[a/b]" * 20
    assert llm.metrics.preempted
    assert first.result.brackets == "[a/b]" * 24
    assert request.result.text == "z" * 30
    assert llm.cache.stats().held == 0


def test_what_begins_with_an_edited_sequence_keeps_its_place():
    llm = mock_llm(endless, cells=48)
    with llm.sequence("xxxx") as seq:
        seq.remove(1, 2)  # a hole: computing its tokens again would give other K and V
        run = llm.parallel(seq, stream=True, max_tokens=16)
        next(run)
        request = llm.parallel("x", stream=True, max_tokens=16)
        assert run.result.brackets == "[a/b]" * 16
        assert request.result.brackets == "[a/b]" * 16
        assert llm.metrics.preempted
        two = [llm.parallel(seq, stream=True, max_tokens=16) for _ in range(2)]
        texts = [stream.result for stream in two]
        assert [(text.finish_reason, text.stop_reason) for text in texts] == [
            ("length", None),
            ("length", "cache full"),
        ]
        assert texts[1].steps
        assert texts[1].brackets == "[a/b]" * len(texts[1].steps)
    assert llm.cache.stats().held == 0


def test_the_last_one_left_ends_and_keeps_its_text():
    llm = mock_llm(endless, cells=32)
    run = llm.parallel("x")
    assert (run.finish_reason, run.stop_reason) == ("length", "cache full")
    assert run.brackets == "[a/b]" * 16
    assert llm.cache.stats().held == 0
    llm.cells.check()


@pytest.mark.parametrize("seed", range(8))
def test_runs_under_pressure(seed):
    """Runs and requests of all kinds come and go in too few cells; each that ends is what it is alone."""
    random = np.random.default_rng(seed)
    limits = stretto.Limits(max_running=12, max_tokens_per_step=int(random.integers(1, 40)))
    asked = []
    for _ in range(14):
        prompt = random.integers(0, 4, random.integers(1, 12)).tolist()  # few tokens: beginnings are shared
        options = {
            "mode": list(MODES.values())[random.integers(3)],
            "threshold": float(random.choice([0.02, 0.03, 1.0])),
            "max_width": 4,
            "max_tokens": int(random.integers(1, 20)),
            "combine": str(random.choice(["mixture", "best"])),
            "prune": random.choice([None, 0.95]),
            "prune_after": int(random.integers(1, 4)),
            "ignore_eos": True,
        }
        asked.append((prompt, options))
    greedy = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
    with tiny_native() as llm:
        alone = [llm.parallel(prompt, **options) for prompt, options in asked]
        texts = [llm.generate(prompt, **greedy).tokens for prompt, _ in asked]
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 100, 2)
    with tiny_llm(backend, limits=limits, prefix_cache=bool(seed % 2)) as llm:
        runs, requests = [], []
        for prompt, options in asked:
            runs.append(llm.parallel(prompt, stream=True, **options))
            requests.append(llm.stream(prompt, **greedy))
            for _ in range(random.integers(4)):
                next(runs[random.integers(len(runs))], None)
            if random.random() < 0.2:
                runs[-1].cancel()
            llm.cells.check()
        for stream, expected in zip(runs, alone, strict=True):
            run = stream.result
            if run.finish_reason != "cancelled":
                assert facts(run) == facts(expected)
                assert run.finish_reason == expected.finish_reason
        assert [request.result.tokens for request in requests] == texts
        assert llm.metrics.preempted
        assert llm.cache.stats().held == 0
        llm.cells.check()
