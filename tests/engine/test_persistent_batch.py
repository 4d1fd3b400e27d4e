"""Requests that just sample on a device take the short way through a step, with the same results."""

from dataclasses import replace

import numpy as np
import pytest

import stretto
from interrupts import interrupted_everywhere
from param_names import named
from stretto.engine.branch import Branching, new_branches, new_text
from stretto.engine.params import RequestParams
from stretto.errors import InvalidRequest
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import choose
from stretto.testing import MockBackend, byte_tokenizer, mock_llm


def flat(seen):
    logits = np.zeros(byte_tokenizer().n_vocab, np.float32)
    logits[ord("a") : ord("z")] = 5.0 + np.arange(25) % (2 + len(seen) % 7)
    return logits


def sample_rows(backend, rows, params, uniforms):
    backend.sampled.append(len(params))
    if backend.fails:
        raise backend.fails.pop()
    asked = zip(rows, params, uniforms, strict=True)
    return [choose(row, each, [], 0, uniform, None) for row, each, uniform in asked]


def queue_rows(backend, rows, params, uniforms):
    backend.queued = backend.sample_rows(rows, params, uniforms)


def forward_queued(backend, batch, which):
    queued = backend.queued if which is None else [backend.queued[i] for i in which]
    batch.ids = [max(token, 0) for token in queued]
    backend.n_ahead += 1
    return backend.forward(batch)


@pytest.fixture(params=[False, True], ids=["step by step", "ahead"])
def both(request, monkeypatch):
    """A model whose backend samples rows, and may queue passes behind that; one whose backend does not."""
    plain = mock_llm(flat)
    monkeypatch.setattr(MockBackend, "samples_rows", True, raising=False)
    monkeypatch.setattr(MockBackend, "sample_rows", sample_rows, raising=False)
    if request.param:
        monkeypatch.setattr(MockBackend, "most_queued", 8, raising=False)
        monkeypatch.setattr(MockBackend, "queue_rows", queue_rows, raising=False)
        monkeypatch.setattr(MockBackend, "forward_queued", forward_queued, raising=False)
        monkeypatch.setattr(MockBackend, "take_rows", lambda backend, n: backend.queued, raising=False)
    llm = mock_llm(flat)
    llm.backend.sampled, llm.backend.fails, llm.backend.n_ahead = [], [], 0
    return llm, plain


PARAMS = RequestParams(SamplingParams(), max_tokens=12)
OPTIONS = {"temperature": 1.0, "seed": 3, "max_tokens": 12}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0},
        {"stop": ["cd", "f"]},
        {"stop_tokens": [ord("e"), ord("k")]},
        {"callback": lambda token: token.text != "h"},
        {"n": 3},
        {"max_tokens": 1},
        {"min_p": 0.4, "top_k": 3},
    ],
    ids=named,
)
def test_texts_are_those_of_any_other_step(both, more):
    llm, plain = both
    prompts, options = ["p", "quo", "r" * 9], OPTIONS | more
    ours, theirs = (
        [one for each in model.generate(prompts, **options) for one in (each if "n" in more else [each])]
        for model in both
    )
    assert [(r.text, r.tokens, r.finish_reason, r.usage) for r in ours] == [
        (r.text, r.tokens, r.finish_reason, r.usage) for r in theirs
    ]
    assert bool(llm.backend.sampled) == (more.get("max_tokens") != 1)
    assert not hasattr(plain.backend, "sampled")


def test_a_stream_gets_each_token_at_once(both):
    llm, plain = both
    stream = llm.stream("p", **OPTIONS)
    for n, token in enumerate(stream):
        assert len(llm.backend.sampled) == n
        assert stream.text.endswith(token.text)
    assert stream.result.text == plain.generate("p", **OPTIONS).text


def test_streams_and_texts_run_side_by_side(both):
    llm, plain = both
    stream = llm.stream("p", **OPTIONS)
    next(stream), next(stream)
    text = llm.generate("q", **(OPTIONS | {"max_tokens": 5})).text
    assert max(llm.backend.sampled) == 2
    assert text == plain.generate("q", **(OPTIONS | {"max_tokens": 5})).text
    assert stream.result.text == plain.generate("p", **OPTIONS).text


def test_a_request_that_needs_more_ends_the_batch(both):
    llm, plain = both
    stream = llm.stream("p", **OPTIONS)
    next(stream), next(stream), next(stream)
    sampled = list(llm.backend.sampled)
    other = llm.generate("q", logprobs=1, **OPTIONS)
    assert llm.backend.sampled == sampled
    assert other.tokens == plain.generate("q", **OPTIONS).tokens
    assert stream.result.text == plain.generate("p", **OPTIONS).text


def test_a_text_that_is_cancelled_has_all_its_tokens(both):
    llm, _ = both
    engine = llm.engine
    with llm.sequence("p", seed=3) as seq:
        (request,) = new_branches(
            engine, seq, RequestParams(SamplingParams(), max_tokens=12), Branching()
        ).requests
        request.output.is_read_at_end = True
        engine.add(request)
        for _ in range(5):
            engine.step()
        assert len(request.output.tokens) == 4
        request.cancel()
        assert request.result().tokens == seq.tokens[-5:]
        assert request.result().text == bytes(seq.tokens[-5:]).decode()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("device")])
def test_an_interrupted_step_changes_no_number(both, error):
    llm, plain = both
    stream = llm.stream("p", **OPTIONS)
    next(stream), next(stream)
    engine = llm.engine
    llm.backend.fails.append(error)
    with pytest.raises(type(error)):
        engine.step()
    assert stream.result.text == plain.generate("p", **OPTIONS).text
    llm.cells.check()


def test_a_row_that_cannot_be_sampled_fails_alone(both, monkeypatch):
    llm, plain = both
    codes = [-1, -1] if hasattr(llm.backend, "queue_rows") else [-1]  # one for each time it is tried

    def sample_worse(*given):
        tokens = sample_rows(*given)
        return [codes.pop(), *tokens[1:]] if codes else tokens

    monkeypatch.setattr(MockBackend, "sample_rows", sample_worse)
    first, second = llm.stream("p", **OPTIONS), llm.stream("q", **OPTIONS)
    next(first)
    with pytest.raises(InvalidRequest):
        list(first)
    assert second.result.text == plain.generate("q", **OPTIONS).text


def test_a_long_text_moves_on_in_its_context(both):
    ours, theirs = (
        model.generate("p" * 40, **OPTIONS | {"max_tokens": 400, "overflow": "shift"}) for model in both
    )
    assert ours.tokens == theirs.tokens


def test_sequences_come_back_with_their_texts(both):
    llm, plain = both
    with llm.sequence("p") as ours, plain.sequence("p") as theirs:
        for model, seq in ((llm, ours), (plain, theirs)):
            model.generate([seq, "q"], **OPTIONS)
        assert ours.tokens == theirs.tokens
        assert np.array_equal(ours.logits, theirs.logits)


def test_no_batch_has_more_requests_than_a_step_has_tokens(both, monkeypatch):
    llm, plain = both
    prompts = ["p", "quo", "r"]
    expected = [one.tokens for one in plain.generate(prompts, **OPTIONS)]
    limits = llm.engine.scheduler.limits
    for most in (3, 2):
        monkeypatch.setattr(llm.engine.scheduler, "limits", replace(limits, max_tokens_per_step=most))
        llm.backend.sampled.clear()
        assert [one.tokens for one in llm.generate(prompts, **OPTIONS)] == expected
        assert 0 < max(llm.backend.sampled) <= most


def test_many_requests_under_pressure(monkeypatch):
    limits = stretto.Limits(max_running=8)
    plain = mock_llm(flat, cells=160, limits=limits)
    monkeypatch.setattr(MockBackend, "samples_rows", True, raising=False)
    monkeypatch.setattr(MockBackend, "sample_rows", sample_rows, raising=False)
    llm = mock_llm(flat, cells=160, limits=limits)
    llm.backend.sampled, llm.backend.fails = [], []
    prompts = [chr(ord("a") + i) * (1 + i % 4) for i in range(20)]
    ours, theirs = (
        model.generate(prompts, **OPTIONS | {"max_tokens": 10 + len(prompts)}) for model in (llm, plain)
    )
    assert [one.tokens for one in ours] == [one.tokens for one in theirs]
    llm.cells.check()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(8))
def test_texts_that_end_at_any_time_are_those_of_any_other_step(both, seed):
    """Texts end by limits, tokens, strings and callbacks, and others arrive while they run."""
    llm, plain = both
    rng = np.random.default_rng(seed)
    asked = []
    for _ in range(12):
        options = {"temperature": 1.0, "seed": int(rng.integers(99)), "max_tokens": int(rng.integers(1, 30))}
        kind = rng.integers(4)
        if kind == 0:
            options["stop_tokens"] = [int(token) for token in rng.integers(ord("a"), ord("z"), 4)]
        elif kind == 1:
            options["stop"] = [chr(int(rng.integers(ord("a"), ord("z"))))]
        asked.append(("p" * int(rng.integers(1, 9)), options))
    streams, results = [], {}
    for i, (prompt, options) in enumerate(asked):
        streams.append((i, llm.stream(prompt, **options)))
        for _ in range(int(rng.integers(4))):
            j, stream = streams[int(rng.integers(len(streams)))]
            next(stream, None)
        if rng.integers(3) == 0:
            j, stream = streams.pop(int(rng.integers(len(streams))))
            results[j] = stream.result
        llm.cells.check()
    results |= {j: stream.result for j, stream in streams}
    for i, (prompt, options) in enumerate(asked):
        theirs = plain.generate(prompt, **options)
        ours = results[i]
        assert (ours.text, ours.tokens, ours.finish_reason) == (
            theirs.text,
            theirs.tokens,
            theirs.finish_reason,
        )
    llm.cells.check()
    llm.cache.clear()
    assert llm.cells.n_free == llm.backend.n_cells


def test_sequences_come_back_as_from_any_other_step(both):
    llm, _plain = both
    for model in both:
        with model.sequence("p", seed=1) as a, model.sequence("quo", seed=2) as b:
            model.generate([a, b], temperature=1.0, max_tokens=9, stop_tokens=[ord("h"), ord("m")])
            texts = [list(seq.tokens) for seq in (a, b)]
            logits = [seq.logits.copy() for seq in (a, b)]
            if model is llm:
                ours, rows = texts, logits
    assert ours == texts
    np.testing.assert_array_equal(rows, logits)


def test_a_pass_is_queued_before_its_tokens_are_known(both):
    llm, _ = both
    llm.generate(["p", "quo"], **OPTIONS)
    if hasattr(llm.backend, "queue_rows"):
        assert llm.backend.n_ahead == OPTIONS["max_tokens"] - 2  # not of the first, not behind the last
    else:
        assert llm.backend.n_ahead == 0


def test_an_interrupted_wait_frees_the_cells_of_the_pass(both, monkeypatch):
    llm, plain = both
    if not hasattr(llm.backend, "queue_rows"):
        pytest.skip("nothing is queued")
    stream = llm.stream("p", **OPTIONS)
    next(stream), next(stream), next(stream)

    def interrupted(backend, n):
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(MockBackend, "take_rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.engine.step()
    llm.cells.check()
    assert stream.result.text == plain.generate("p", **OPTIONS).text


def test_parked_texts_make_room_for_the_batch(both):
    llm, plain = both
    for i in range(40):
        llm.generate(chr(ord("A") + i) * 25, **(OPTIONS | {"seed": i}))
    assert llm.cells.n_free < 64
    n_sampled = len(llm.backend.sampled)
    ours = llm.generate(["p", "quo"], **(OPTIONS | {"max_tokens": 60}))
    assert [one.text for one in ours] == [
        one.text for one in plain.generate(["p", "quo"], **(OPTIONS | {"max_tokens": 60}))
    ]
    assert len(llm.backend.sampled) == n_sampled + 59
    llm.cells.check()


def test_the_repeat_guard_ends_texts_at_the_same_token(both):
    llm, plain = both
    prompts = [[65], [66, 66], [67] * 30]
    found = llm.generate(prompts, temperature=0, repeat_guard=True)
    assert llm.backend.sampled
    assert [one.finish_reason for one in found] == ["repetition"] * 3
    expected = [plain.generate(prompt, temperature=0, repeat_guard=True) for prompt in prompts]
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert llm.cache.stats().held == 0


def test_texts_that_are_cached_already_end_as_any_other(both):
    options = OPTIONS | {"n": 2, "callback": lambda token: token.text != "h"}
    for _ in range(3):
        ours, theirs = (model.generate("rst", **options) for model in both)
        assert [(one.tokens, one.usage) for one in ours] == [(one.tokens, one.usage) for one in theirs]
    for model in both:
        (longest,) = sorted((one.tokens for one in model.generate("rst", **options)), key=len)[1:]
        again = model.generate([*b"rst", *longest[:-1], *b"??"], max_tokens=1)
        assert again.usage.cached_tokens == 3 + len(longest) - 1
        model.cells.check()


@pytest.mark.slow
def test_no_number_and_no_cell_is_lost_when_any_step_is_interrupted(both):
    llm, plain = both
    prompts = ["p", "quo"]
    expected = [one.tokens for one in plain.generate(prompts, **OPTIONS)]

    def act(llm):
        assert [one.tokens for one in llm.generate(prompts, **OPTIONS)] == expected
        llm.generate("r", n=2, callback=lambda token: token.text != "h", **OPTIONS)

    def check(llm):
        llm.cells.check()
        assert [one.tokens for one in llm.generate(prompts, **OPTIONS)] == expected

    assert interrupted_everywhere(lambda: llm, act, check, step=149) > 500
    llm.cache.clear()
    assert (llm.cells.n_free, llm.metrics.running) == (llm.backend.n_cells, 0)


def test_texts_of_a_large_call_take_turns_beside_a_small_one(both):
    """Where rows are dear, whether the step is a persistent batch or not."""
    llm, _ = both
    engine = llm.engine
    engine.scheduler.row_costs.rows_beside = lambda n: 3
    params = RequestParams(SamplingParams(), max_tokens=60)
    many = [new_text(engine, [65 + i], params) for i in range(6)]
    engine.add(*many)
    engine.add(new_text(engine, [90], params))
    for _ in range(6):
        engine.step()
    before = engine.metrics.decoded_tokens
    for _ in range(3):
        engine.step()
    assert engine.metrics.decoded_tokens - before == 9
    engine.scheduler.row_costs.rows_beside = lambda n: 99
    engine.step()
    engine.step()
    before = engine.metrics.decoded_tokens
    engine.step()
    assert engine.metrics.decoded_tokens - before == 7
    assert max(llm.backend.sampled) == 7
    for request in many:
        request.cancel()
