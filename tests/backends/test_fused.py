"""The fused loop gives the tokens, texts and ends of the Python loop."""

from types import SimpleNamespace

import numpy as np
import pytest

import stretto
from param_names import named
from same_results import same
from stretto import _native
from stretto.engine import output
from stretto.engine.steps import FusedLoop
from stretto.errors import InvalidRequest, Unsupported
from stretto.sampling import RandomStream
from stretto.testing import mock_llm
from stretto.text.reasoning import Format, Reasoning, block


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with stretto.load(smollm2_path, cells=1024) as llm:
        yield llm


def fused_loop(llm):
    (loop,) = [form for form in llm.engine.forms if isinstance(form, FusedLoop)]
    return loop


def both(llm, prompt, **options):
    """The same request by both loops; afterwards nothing is held."""
    results = [llm.generate(prompt, loop=loop, **options) for loop in ("python", "fused")]
    assert llm.cache.stats().held == 0
    llm.cells.check()
    return results


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"seed": 5},
        {"seed": 6, "temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"seed": 7, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"seed": 8, "logit_bias": {198: -np.inf, 260: 2.0}},
        {"seed": 9, "stop": [" the"]},
        {"seed": 9, "stop": lambda text: len(text) > 60},
        {"seed": 10, "stop_tokens": [260, 284, 28]},
    ],
    ids=named,
)
@pytest.mark.parametrize("max_tokens", [1, 2, 31, 32, 33, 70])
def test_the_same_result(llm, options, max_tokens):
    same(*both(llm, "Once upon a time, there was", max_tokens=max_tokens, ignore_eos=True, **options))


def test_the_same_end(llm):
    prompt = llm.chat_prompt([{"role": "user", "content": "Say hello."}])
    ending = dict.fromkeys(llm.tokenizer.end_ids, 8.0)  # after a few words, whatever they are
    python, fused = both(llm, prompt, temperature=0, max_tokens=200, logit_bias=ending)
    same(python, fused)
    assert python.finish_reason == "stop"
    assert isinstance(python.stop_reason, int)


def test_to_the_end_of_the_context(smollm2_path):
    with stretto.load(smollm2_path, cells=64) as llm:
        python, fused = both(llm, "Once upon a time", temperature=0, ignore_eos=True)
        same(python, fused)
        assert fused.finish_reason == "length"
        assert fused.usage.total_tokens == 65  # the last token needs no cell


def test_streams_and_callbacks(llm):
    options = {"seed": 3, "max_tokens": 40, "ignore_eos": True}
    python = list(llm.stream("The sea", **options))
    fused = list(llm.stream("The sea", loop="fused", **options))
    assert [(t.id, t.text, t.finish_reason) for t in python] == [
        (t.id, t.text, t.finish_reason) for t in fused
    ]
    seen = []

    def callback(token):
        seen.append(token.id)
        return len(seen) < 5

    result = llm.generate("The sea", loop="fused", callback=callback, **options)
    assert (result.stop_reason, result.tokens) == ("callback", [t.id for t in python[:5]])
    assert llm.cache.stats().held == 0


def test_nobody_waits_for_tokens_that_are_run_ahead(smollm2_path):
    """With a request beside it, a request gets one token a step."""
    with stretto.load(smollm2_path, cells=1024) as llm:
        options = {"max_tokens": 40, "loop": "fused", "ignore_eos": True}
        with (
            llm.stream("The sea", seed=1, **options) as first,
            llm.stream("A hill", seed=2, **options) as other,
        ):
            counts = []
            for _ in range(10):
                next(first)
                counts.append(len(first.request.output.tokens) - len(other.request.output.tokens))
        assert max(map(abs, counts)) <= 2


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 5, "max_tokens": 40},
        {"seed": 9, "max_tokens": 40, "stop": [" the"]},
        {
            "seed": 6,
            "max_tokens": 40,
            "grammar": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    ],
    ids=named,
)
def test_an_interrupt_changes_nothing_but_the_steps(llm, options):
    """When a request arrives, the loop ends after the current token."""
    python = llm.generate("The sea", **options)
    interrupt, steps = llm.engine.arrivals.interrupt, []
    for every in (1, 3):
        asked = []

        def callback(token, every=every, asked=asked):
            asked.append(token)
            interrupt[0] = len(asked) % every == 0  # seen by the loop that comes next
            return True

        try:
            before = llm.metrics.steps
            fused = llm.generate("The sea", loop="fused", callback=callback, **options)
            steps.append(llm.metrics.steps - before)
        finally:
            interrupt[0] = 0
        same(python, fused)
        assert llm.cache.stats().held == 0
        llm.cells.check()
    assert steps[0] >= steps[1]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 1.2, "top_k": 0, "top_p": 0.9, "min_p": 0.0},
        {"temperature": 1.2, "top_k": 0, "top_p": 1.0, "min_p": 0.02},
        {"temperature": 2.0, "top_k": 8, "top_p": 0.9, "min_p": 0.0},
        {"temperature": 2.0, "top_k": 3, "min_p": 0.001},
        {"repetition_penalty": 1.2, "logit_bias": {260: 2.0}},
    ],
    ids=named,
)
@pytest.mark.parametrize("pattern", ["[a-z ,.]{80}", "[^e]{60}", "[0-9]{50}", r"(\w+ ){30}"])
def test_the_same_under_a_mask(llm, pattern, options):
    """The fused loop knows what is largest where; a mask may forbid just that."""
    options = {"grammar": stretto.Grammar.regex(pattern), "max_tokens": 30, "seed": 4, **options}
    same(*both(llm, "Once upon a time", **options))


def test_an_arriving_request_waits_for_one_token(llm):
    engine = llm.engine
    stream = llm.stream("The sea", loop="fused", max_tokens=40, temperature=0, ignore_eos=True)
    tokens = stream.request.output.tokens
    with engine.arrivals.arriving():
        with engine.arrivals.arriving():
            assert engine.arrivals.interrupt[0]
        engine.step()
        assert (len(tokens), engine.cells.count(stream.request.decoder.track.id)) == (1, 3)
    assert not engine.arrivals.interrupt[0]
    fused_loop(llm).token_seconds = 1e-3  # a fast model: as many tokens as a call has at most
    engine.step()
    assert len(tokens) == 33
    alone = llm.generate("The sea", max_tokens=40, temperature=0, ignore_eos=True)
    assert stream.result.tokens == alone.tokens
    llm.cells.check()


def test_a_slow_model_hands_the_engine_over_after_two_tokens(llm):
    engine = llm.engine
    stream = llm.stream("The sea", loop="fused", max_tokens=40, temperature=0, ignore_eos=True)
    fused_loop(llm).token_seconds = 10.0
    steps = engine.metrics.steps
    engine.step()
    assert len(stream.request.output.tokens) == 2
    assert engine.metrics.steps - steps == 3  # the prompt's, and one for each token
    assert len(stream.result.tokens) == 40


def test_each_token_is_given_out_when_it_is_made(llm, monkeypatch):
    """Nothing is computed behind a token that is being given out, and timings are those of the tokens."""
    clock = [0.0]
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(fused_loop(llm), "token_seconds", 1e-3)  # a fast model: 32 tokens in a call
    before = llm.metrics.decoded_tokens

    def callback(token):
        clock[0] += 1.0
        return clock[0] < 24

    result = llm.generate("The sea", loop="fused", max_tokens=40, ignore_eos=True, callback=callback)
    assert len(result.tokens) == 24
    assert llm.metrics.decoded_tokens - before <= 24
    assert result.timings.decode == 23.0


def test_an_exception_in_a_callback(llm):
    def callback(token):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        llm.generate("The sea", loop="fused", callback=callback)
    assert llm.cache.stats().held == 0


def test_beside_other_requests_it_is_the_python_loop(llm):
    alone = [llm.generate(p, seed=4, max_tokens=20) for p in ("One", "Two")]
    together = llm.generate(["One", "Two"], seed=4, max_tokens=20, loop="fused")
    for a, b in zip(alone, together, strict=True):
        same(a, b)


def test_sequences_go_on_after_it(llm):
    """The cells that the loop filled are as good as any."""
    with llm.sequence("Once upon a time") as seq:
        first = [seq.step(temperature=0).token for _ in range(12)]
    with llm.sequence("Once upon a time") as seq:
        tokens = llm.generate(seq, loop="fused", max_tokens=6, temperature=0, ignore_eos=True).tokens
        llm.cells.check()
        tokens += [seq.step(temperature=0).token for _ in range(6)]
        assert seq.positions == list(range(len(seq)))
    assert tokens == first


def test_numpys_random_numbers():
    for seed, index in ((0, 0), (7, 0), (2**64 - 1, 3), (12345678901234567890, 1)):
        stream = RandomStream(seed, index)
        assert [_native.uniform(seed, index, i) for i in range(100)] == [stream.uniform() for _ in range(100)]


def test_what_it_cannot_do():
    llm = mock_llm("Hi")
    with pytest.raises(Unsupported, match="the mock backend cannot do 'fused'; backend='native' can"):
        llm.generate("p", loop="fused")


def test_hooks_and_logprobs_need_python(llm):
    for options in ({"hooks": [lambda logits, tokens: None]}, {"logprobs": 1}):
        with pytest.raises(InvalidRequest, match="loop='python'"):
            llm.generate("p", loop="fused", **options)


def test_the_same_reasoning_and_answer(llm, monkeypatch):
    ids = llm.tokenizer.specials
    layout = Format("test", (), block("<repo_name>", "<empty_output>"))
    monkeypatch.setattr(llm.engine, "reasoning", Reasoning(layout, llm.tokenizer))
    prompt = [*llm.tokenizer.encode("The colour of the sky is"), ids["<repo_name>"]]
    colours = stretto.Grammar.choices(["red", "blue and clear", "green"])
    options = {"reasoning": True, "seed": 3, "max_tokens": 36}
    for end, grammar in ((-50.0, None), (12.0, None), (12.0, colours), (50.0, colours), (-50.0, colours)):
        bias = {ids["<empty_output>"]: end}
        if end < 0:  # whether the model would end within so many tokens is up to its kernels
            bias |= dict.fromkeys(llm.tokenizer.end_ids, -np.inf)
        python, fused = both(llm, prompt, grammar=grammar, logit_bias=bias, **options)
        same(python, fused)
        assert python.reasoning == fused.reasoning
        assert python.usage.reasoning_tokens == fused.usage.reasoning_tokens
        if grammar is not None and end > 0 and python.finish_reason == "stop":
            assert python.text in ("red", "blue and clear", "green")
        if abs(end) == 50:  # it closes the reasoning at once, or never
            assert python.finish_reason == ("stop" if end > 0 else "length")
            assert bool(python.reasoning) == (end < 0)
