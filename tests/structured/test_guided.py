"""A grammar beside everything else a request can have."""

import asyncio
import json
import re

import numpy as np
import pytest

import stretto
import vocabularies
from stretto import Grammar, InvalidRequest
from stretto.hooks import NativeHook
from stretto.llm import LLM
from stretto.structured import guide
from stretto.testing import MockBackend, mock_llm
from stretto.text.spm import SPMTokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "pet": {"enum": ["cat", "dog", "none at all"]},
    },
    "required": ["name", "age", "pet"],
    "additionalProperties": False,
}
GRAMMARS = {
    "json": Grammar.json(PERSON),
    "compact": Grammar.json(PERSON, whitespace="compact"),
    "regex": Grammar.regex(r"\d{4}-\d{2}-\d{2}( or \d{4})*"),
    "choices": Grammar.choices(["the cat sat", "the cat sat on the mat", "a dog"]),
    "forced": Grammar.choices(["There is nothing to choose here, not a single word of it."]),
}
WILD = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with stretto.load(smollm2_path, cells=4096) as llm:
        yield llm


def forget(llm):
    llm.cache.clear()


# -- the same tokens, whoever asks --


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("seed", range(3))
def test_the_fused_loop_gives_the_same_tokens(llm, name, seed):
    options = {"grammar": GRAMMARS[name], "seed": seed, "max_tokens": 60, **WILD}
    forget(llm)
    plain = llm.generate("A person:", loop="python", **options)
    forget(llm)
    fused = llm.generate("A person:", loop="fused", **options)
    assert (fused.tokens, fused.text) == (plain.tokens, plain.text)
    assert (fused.finish_reason, fused.stop_reason) == (plain.finish_reason, plain.stop_reason)


@pytest.mark.parametrize("loop", ["python", "fused"])
def test_every_cut_gives_a_beginning(llm, loop):
    """max_tokens may fall anywhere: between sampled tokens, or within those that have to come."""
    options = {"grammar": GRAMMARS["json"], "seed": 5, "loop": loop, **WILD}
    whole = llm.generate("A person:", **options)
    assert whole.finish_reason == "stop"
    for n in range(1, len(whole.tokens)):
        part = llm.generate("A person:", max_tokens=n, **options)
        assert part.tokens == whole.tokens[:n]
        assert (part.finish_reason, part.stop_reason) == ("length", None)
    exact = llm.generate("A person:", max_tokens=len(whole.tokens), **options)
    assert (exact.tokens, exact.finish_reason) == (whole.tokens, "stop")


@pytest.mark.parametrize("loop", ["python", "fused"])
def test_what_stays_in_the_cache_is_true(llm, loop):
    """Tokens that were never run must not be found again as if they had been."""
    for name, grammar in GRAMMARS.items():
        for n in (3, 7, 40):
            forget(llm)
            prompt = llm.tokenizer.encode(f"About {name}:")
            first = llm.generate(prompt, grammar=grammar, seed=1, max_tokens=n, loop=loop, **WILD)
            again = [*prompt, *first.tokens, *llm.tokenizer.encode(" and")]
            with llm.sequence(again) as warm:
                logits = warm.logits.copy()
            forget(llm)
            with llm.sequence(again) as cold:
                assert (cold.logits == logits).all()


def test_alone_or_in_a_batch(llm):
    names = list(GRAMMARS)
    alone = [
        llm.generate("Say:", grammar=GRAMMARS[name], seed=9, max_tokens=50, **WILD).tokens for name in names
    ]
    free = llm.stream("Once upon a time", temperature=0, max_tokens=30)
    streams = [llm.stream("Say:", grammar=GRAMMARS[name], seed=9, max_tokens=50, **WILD) for name in names]
    assert [stream.result.tokens for stream in streams] == alone
    assert free.result.tokens == llm.generate("Once upon a time", temperature=0, max_tokens=30).tokens


def test_streams_hand_out_every_token(llm):
    stream = llm.stream("A person:", grammar=PERSON, seed=2, **WILD)
    events = list(stream)
    assert [event.id for event in events] == stream.result.tokens
    assert "".join(event.text for event in events) == stream.result.text
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason == "stop"
    assert json.loads(stream.result.text).keys() == PERSON["properties"].keys()


def test_several_from_one_prompt(llm):
    results = llm.generate("A person:", grammar=PERSON, n=4, seed=3, **WILD)
    assert len({result.text for result in results}) > 1
    for result in results:
        assert json.loads(result.text).keys() == PERSON["properties"].keys()
    assert results[0].tokens == llm.generate("A person:", grammar=PERSON, seed=3, **WILD).tokens
    best = llm.generate("A person:", grammar=PERSON, best_of=4, seed=3, **WILD)
    assert best.text in [result.text for result in results]
    assert best.logprob is not None
    assert best.logprob < 0


def test_asyncio(llm):
    async def all_of_it():
        batch = await llm.agenerate(["A:", "B:"], grammar=PERSON, seed=1, **WILD)
        text = "".join([token.text async for token in llm.astream("A:", grammar=PERSON, seed=1, **WILD)])
        return batch, text

    batch, text = asyncio.run(all_of_it())
    assert text == batch[0].text
    assert all(json.loads(result.text) for result in batch)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loop", ["python", "fused"])
def test_when_cells_run_out_the_guide_goes_on(smollm2_path, llm, loop):
    prompts = [f"Person number {i} of a long list of people who all have a pet:" for i in range(6)]
    schema = {"type": "array", "items": PERSON, "minItems": 2, "maxItems": 2}
    options = {"grammar": schema, "seed": 1, "loop": loop, **WILD}
    plenty = [llm.generate(prompt, **options).tokens for prompt in prompts]
    with stretto.load(smollm2_path, cells=160) as small:
        results = small.generate(prompts, **options)
        assert small.metrics.preempted > 0
    for result, tokens in zip(results, plenty, strict=True):
        assert result.tokens == tokens[: len(result.tokens)]
        assert result.finish_reason == "stop" or result.stop_reason == "cache full"
    assert sum(result.finish_reason == "stop" for result in results) >= 4


# -- how it is computed --


def test_what_has_to_come_costs_no_passes():
    """What comes first is computed with the prompt, what follows a token together with it."""
    llm = mock_llm('{"ok": true}')
    grammar = Grammar.json(
        {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        }
    )
    result = llm.generate("Hi", grammar=grammar, temperature=0)
    assert result.text == '{"ok": true}'
    assert (result.finish_reason, result.stop_reason) == ("stop", "grammar")
    assert [bytes(batch) for batch in llm.backend.batches] == [b'Hi{"ok": ']
    assert llm.metrics.decoded_tokens == 0
    assert result.usage.completion_tokens == 12


def test_forced_tokens_behind_a_sampled_one_are_one_pass():
    llm = mock_llm("[true, false, true]")
    grammar = Grammar.json({"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3})
    result = llm.generate("Hi", grammar=grammar, temperature=0)
    assert result.text == "[true, false, true]"
    assert [bytes(batch) for batch in llm.backend.batches] == [b"Hi[", b"true, ", b"false, "]
    assert llm.metrics.decoded_tokens == 13


def test_a_text_without_a_choice_asks_the_model_nothing():
    llm = mock_llm("whatever")
    result = llm.generate("Hi", grammar=Grammar.choices(["certain"]))
    assert (result.text, result.finish_reason) == ("certain", "stop")
    assert len(llm.backend.batches) == 1


def test_a_long_forced_text_meets_the_end_of_the_context():
    llm = mock_llm("x", context_length=64)
    long = "abcdefgh" * 20
    result = llm.generate("Hi", grammar=Grammar.choices([long]))
    assert result.finish_reason == "length"
    assert result.text == long[: len(result.text)]
    assert len(result.text) == len(llm.generate("Hi", ignore_eos=True, temperature=0).tokens)
    short = llm.generate("Hi" * 30, grammar=Grammar.choices([long]))
    assert (short.finish_reason, short.text) == ("length", long[: len(short.text)])


def test_overflow_by_shifting_goes_on():
    digits = iter(range(10**6))
    llm = mock_llm(lambda seen: ord("0") + next(digits) % 10, context_length=48)
    grammar = Grammar.regex("([0-9]{5};){30}")
    result = llm.generate("Hi", grammar=grammar, overflow="shift", keep=2)
    assert result.finish_reason == "stop"
    assert re.fullmatch("([0-9]{5};){30}", result.text)


# -- beside other options --


def test_hooks_come_before_the_mask(llm):
    banned = llm.tokenizer.encode("cat")[0]
    seen = []

    def hook(logits, tokens):
        seen.append(len(tokens))
        logits[:] += np.float32(1000) * (np.arange(len(logits)) == banned)  # shouts for what may not come

    result = llm.generate("x", grammar=Grammar.regex("[0-9]{3}"), hooks=[hook], **WILD)
    assert re.fullmatch("[0-9]{3}", result.text)
    assert len(seen) == len(result.tokens)

    def choose_dog(logits, tokens):
        logits[llm.tokenizer.encode("dog")[0]] = 100

    result = llm.generate("x", grammar=Grammar.choices(["cat", "dog"]), hooks=[choose_dog], temperature=0)
    assert result.text == "dog"


def test_a_hook_that_leaves_nothing_ends_its_own_request(llm):
    def nothing(logits, tokens):
        logits[:] = -np.inf
        logits[0] = 0  # an end token, which may not come yet

    other = llm.stream("Once", temperature=0, max_tokens=12)
    with pytest.raises(InvalidRequest, match="every token is excluded"):
        llm.generate("x", grammar=Grammar.regex("[a-z]{3}"), hooks=[nothing])
    assert len(other.result.tokens) == 12


def test_what_fails_within_the_fused_loop_ends_its_own_request(llm, monkeypatch):
    stream = llm.stream("x", grammar=PERSON, loop="fused", **WILD)
    monkeypatch.setattr(guide, "MAX_STEP_SECONDS", -1.0)
    with pytest.raises(InvalidRequest, match="for one token"):
        _ = stream.result
    monkeypatch.undo()
    assert llm.cache.stats().held == 0
    assert json.loads(llm.generate("x", grammar=PERSON, loop="fused", seed=1, **WILD).text)


def test_native_hooks_in_the_fused_loop(llm):
    import ctypes

    @ctypes.CFUNCTYPE(
        None, ctypes.POINTER(ctypes.c_float), ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p
    )
    def flip(logits, n_vocab, tokens, n, state):
        row = np.ctypeslib.as_array(logits, (n_vocab,))
        row *= -1

    options = {"grammar": PERSON, "hooks": [NativeHook(flip)], "temperature": 0, "max_tokens": 40}
    plain = llm.generate("A person:", loop="python", **options)
    fused = llm.generate("A person:", loop="fused", **options)
    assert fused.tokens == plain.tokens
    assert fused.tokens != llm.generate("A person:", grammar=PERSON, temperature=0, max_tokens=40).tokens


def test_stop_strings_and_tokens_still_stop(llm):
    result = llm.generate("x", grammar=PERSON, stop='", "age', seed=1, **WILD)
    assert (result.finish_reason, result.stop_reason) == ("stop", '", "age')
    assert re.fullmatch(r'\{"name": ".{1,60}', result.text)
    comma = llm.tokenizer.encode(",")[0]
    result = llm.generate("x", grammar=Grammar.regex("[a-z],[a-z]"), stop_tokens=[comma], seed=1)
    assert re.fullmatch("[a-z]", result.text)
    assert result.stop_reason == comma


def test_callbacks_see_forced_tokens_and_may_stop():
    seen = []
    llm = mock_llm("x")

    def three(token):
        seen.append(token.text)
        return len(seen) < 3

    result = llm.generate("Hi", grammar=Grammar.choices(["abcdef"]), callback=three)
    assert seen == ["a", "b", "c"]
    assert (result.text, result.stop_reason) == ("abc", "callback")


def test_penalties_and_bias(llm):
    digit = {llm.tokenizer.encode(str(i))[0]: i for i in range(10)}
    bias = {token: (50.0 if i == 7 else 0.0) for token, i in digit.items()}
    result = llm.generate("x", grammar=Grammar.regex("[0-9]{6}"), logit_bias=bias, temperature=0)
    assert result.text == "777777"
    result = llm.generate(
        "x", grammar=Grammar.regex("[0-9]{6}"), logit_bias=bias, temperature=0, presence_penalty=100.0
    )
    assert len(set(result.text)) == 6


def test_timeouts_and_cancellation(llm):
    endless = Grammar.regex("([a-z] )*")
    result = llm.generate(
        "x", grammar=endless, timeout=0.05, logit_bias=dict.fromkeys(llm.tokenizer.end_ids, -99.0)
    )
    assert result.finish_reason == "timeout"
    stream = llm.stream("x", grammar=endless, **WILD)
    next(stream)
    stream.cancel()
    assert stream.result.finish_reason == "cancelled"


# -- log-probabilities --


def test_log_probabilities_are_among_what_may_come(llm):
    """As the tokens were drawn: what the grammar excludes has none, what it forces has 0."""
    grammar = Grammar.choices(["true", "false"])
    result = llm.generate("x is", grammar=grammar, logprobs=5, temperature=0)
    with llm.sequence("x is") as seq:
        guide = llm.guide(grammar)
        assert guide.begin() == []
        allowed = guide.allowed()
        logits = seq.logits[allowed].astype(np.float64)
    logs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    first, *rest = result.logprobs
    assert {entry.token for entry in first.top} <= set(allowed.tolist())
    assert first.logprob == pytest.approx(dict(zip(allowed.tolist(), logs, strict=True))[first.id], abs=1e-5)
    assert len(first.top) == min(5, len(allowed))
    for entry in rest:
        assert all(candidate.logprob <= 0 for candidate in entry.top)
    forced = llm.generate("x", grammar=Grammar.choices(["certainly so"]), logprobs=3)
    assert [(token.logprob, token.top[0].logprob) for token in forced.logprobs] == [(0.0, 0.0)] * len(
        forced.tokens
    )


# -- one's own loop --


def test_a_guide_for_a_loop_of_ones_own(llm):
    guide = llm.guide(PERSON)
    with llm.sequence("A person:", seed=4) as seq:
        start = len(seq)
        seq.append(guide.begin())
        while not guide.done:
            token = seq.sample(logits=guide.masked(seq.logits), **WILD)
            assert guide.mask[token // 32] >> (token % 32) & 1
            seq.append([token, *guide.push(token)])
        assert guide.accepting
        tokens = seq.tokens[start:]
    assert tokens == llm.generate("A person:", grammar=PERSON, seed=4, **WILD).tokens


def test_guides_fork(llm):
    guide = llm.guide(Grammar.regex("[ab]{2}"))
    a, b = llm.tokenizer.encode("a")[0], llm.tokenizer.encode("b")[0]
    guide.push(a)
    twin = guide.fork()
    twin.push(b)
    assert (guide.done, twin.done) == (False, True)
    with pytest.raises(InvalidRequest, match="does not fit"):
        guide.fork().push(llm.tokenizer.encode("c")[0])
    guide.push(a)
    assert guide.done


# -- what is not there --


def test_what_is_not_supported_says_so(llm):
    with pytest.raises(InvalidRequest, match="ignore_eos"):
        llm.generate("x", grammar=PERSON, ignore_eos=True)
    for wrong in ("a text", 5, ["a"]):
        with pytest.raises(InvalidRequest, match="grammar must be"):
            llm.generate("x", grammar=wrong)


# -- vocabularies --


def test_a_space_at_the_beginning_stays():
    """SentencePiece hides the first space of a fragment; a grammar that asks for one gets it."""
    tokenizer = SPMTokenizer(vocabularies.metadata(vocabularies.spm()))
    assert tokenizer.space_prefix
    backend = MockBackend(lambda seen: np.zeros(tokenizer.n_vocab, np.float32), tokenizer.n_vocab)
    llm = LLM(backend, tokenizer)
    for pattern in (" hello", "hello( world){1,2}", "  hello<tool> hello", "(<tool> ?hello){2}\n\n world"):
        for seed in range(5):
            result = llm.generate([1], grammar=Grammar.regex(pattern), seed=seed, **WILD)
            assert re.fullmatch(pattern, result.text), (pattern, result.text)


def test_a_vocabulary_without_an_end():
    from stretto.testing import byte_tokenizer

    tokenizer = byte_tokenizer(specials=("<|start|>",))
    backend = MockBackend(lambda seen: ord("a"), tokenizer.n_vocab)
    llm = LLM(backend, tokenizer)
    assert llm.generate("x", grammar=Grammar.regex("a{3}"), temperature=0).text == "aaa"
    assert (
        llm.generate("x", grammar=Grammar.regex("a+"), temperature=0, max_tokens=5).finish_reason == "length"
    )
