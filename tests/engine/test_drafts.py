"""Guessed tokens are checked several at a time; the text is that of a plain request, to the last bit."""

import asyncio
import dataclasses
import random

import numpy as np
import pytest

import stretto
from param_names import named
from stretto import DraftModel, Limits, PromptLookup
from stretto.backends.native import NativeBackend
from stretto.drafts.base import DraftLength
from stretto.drafts.lookup import Lookup, Suffixes
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import tiny_file, tiny_spec

COPY = "The quick brown fox jumps over the lazy dog.\n" * 3 + "The quick"


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with stretto.load(smollm2_path, cells=2048) as llm:
        yield llm


class Script:
    """Guesses what it is told to; a drafter and a guesser at once."""

    def __init__(self, propose, most=8):
        self.propose, self.most, self.closed = propose, most, 0

    def begin(self, tokenizer):
        return self

    def close(self):
        self.closed += 1


def oracle(text, most=8):
    """Knows the whole text, which begins with the prompt."""
    return Script(lambda tokens, n: list(text[len(tokens) : len(tokens) + n]), most)


def what(result):
    return (
        result.text, result.tokens, result.finish_reason, result.stop_reason, result.logprobs, result.usage
    )  # fmt: skip


def settled(llm):
    assert llm.cache.stats().held == 0
    llm.cells.check()


OPTIONS = [
    {"temperature": 0},
    {"seed": 5},
    {"seed": 6, "temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"seed": 7, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"seed": 8, "logit_bias": {198: -np.inf, 260: 2.0}},
    {"seed": 9, "stop": [" lazy"]},
    {"temperature": 0, "stop": lambda text: len(text) > 40},
    {"temperature": 0, "logprobs": 3},
]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 17, 60])
@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_the_same_text(llm, options, max_tokens):
    options = {**options, "max_tokens": max_tokens, "ignore_eos": True}
    plain = llm.generate(COPY, **options)
    llm.cache.clear()
    llm.generate(COPY, max_tokens=1)  # so that both find the same in the cache
    assert what(llm.generate(COPY, draft="lookup", **options))[:-1] == what(plain)[:-1]
    settled(llm)


def test_copying_takes_fewer_passes(llm):
    before = llm.metrics.steps, llm.metrics.drafted_tokens, llm.metrics.accepted_tokens
    result = llm.generate(COPY, draft="lookup", temperature=0, max_tokens=60, ignore_eos=True)
    assert len(result.tokens) == 60
    assert llm.metrics.steps - before[0] < 30
    guessed, right = llm.metrics.drafted_tokens - before[1], llm.metrics.accepted_tokens - before[2]
    assert 30 < right <= guessed


def test_the_same_end(llm):
    prompt = llm.chat_prompt([{"role": "user", "content": "Say hello hello hello hello."}])
    ending = dict.fromkeys(llm.tokenizer.end_ids, 8.0)  # after a few words, whatever they are
    options = {"temperature": 0, "max_tokens": 100, "logit_bias": ending}
    plain = llm.generate(prompt, **options)
    drafted = llm.generate(prompt, draft="lookup", **options)
    assert what(drafted)[:-1] == what(plain)[:-1]
    assert plain.finish_reason == "stop"


def test_beside_others(llm):
    prompts = [COPY, "Once upon a time", COPY[:60], "def f(x):\n    return x\n\ndef f(x):\n    return"]
    options = {"seed": 3, "max_tokens": 40, "ignore_eos": True}
    alone = [llm.generate(prompt, **options) for prompt in prompts]
    streams = [
        llm.stream(prompt, **options, **({"draft": "lookup"} if i % 2 == 0 else {}))
        for i, prompt in enumerate(prompts)
    ]
    for stream, plain in zip(streams, alone, strict=True):
        assert what(stream.result)[:-1] == what(plain)[:-1]
    assert [r.tokens for r in llm.generate(prompts, draft="lookup", **options)] == [r.tokens for r in alone]
    settled(llm)


def test_siblings_guess_for_themselves(llm):
    options = {"seed": 4, "max_tokens": 30, "ignore_eos": True, "n": 3, "temperature": 2.0}
    plain = llm.generate(COPY, **options)
    drafted = llm.generate(COPY, draft="lookup", **options)
    assert [what(result)[:-1] for result in drafted] == [what(result)[:-1] for result in plain]
    assert len({tuple(result.tokens) for result in plain}) == 3
    settled(llm)


def test_best_of_and_async(llm):
    options = {"seed": 4, "max_tokens": 12, "ignore_eos": True}
    plain = llm.generate(COPY, best_of=2, **options)
    assert llm.generate(COPY, best_of=2, draft="lookup", **options).tokens == plain.tokens
    drafted = asyncio.run(llm.agenerate(COPY, draft="lookup", **options))
    assert drafted.tokens == llm.generate(COPY, **options).tokens
    settled(llm)


# -- the mechanism, with scripts --


def test_right_guesses_are_taken_and_wrong_ones_rolled_back():
    text = "0123456789" * 8
    llm = mock_llm(text)
    rng = random.Random(0)
    whole = llm.tokenizer.encode("?") + llm.tokenizer.encode(text)

    def sometimes(tokens, most):
        guess = whole[len(tokens) : len(tokens) + most]
        if guess and rng.random() < 0.5:
            guess[rng.randrange(len(guess))] = 7
        return guess

    draft = Script(sometimes)
    result = llm.generate("?", draft=draft, temperature=0, max_tokens=79)
    assert result.text == text[:79]
    assert draft.closed == 1
    assert 0 < llm.metrics.accepted_tokens < llm.metrics.drafted_tokens
    assert llm.metrics.steps < 79
    settled(llm)
    assert llm.generate("?" + text[:40], temperature=0).text == text[40:]  # what was parked is right


def test_a_sequence_that_was_continued_has_the_logits_behind_its_last_token():
    llm = mock_llm("abcdefgh")
    seq = llm.sequence("x")
    assert llm.generate(seq, draft=oracle(b"xabcdefgh"), temperature=0).text == "abcdefgh"
    assert llm.metrics.accepted_tokens > 0
    assert seq.logits.argmax() == llm.tokenizer.eos_id


def test_guesses_stop_at_limits():
    seen = []

    def note(tokens, most):
        seen.append((len(tokens), most))
        return [120] * most

    llm = mock_llm(lambda seen: 120, cells=64, context_length=60)
    result = llm.generate("ab", draft=Script(note, most=100), temperature=0)
    assert (result.finish_reason, result.text) == ("length", "x" * 59)  # the last needs no cell
    assert all(tokens + most < 60 for tokens, most in seen)
    assert max(most for _, most in seen) == 16
    settled(llm)
    shifted = {"temperature": 0, "overflow": "shift", "keep": 2, "max_tokens": 100}
    assert llm.generate("ab", draft=Script(note), **shifted).text == llm.generate("ab", **shifted).text
    settled(llm)


def test_guesses_are_given_up_before_anybody_is_parked_or_ended():
    llm = mock_llm(lambda seen: 120, cells=40, context_length=64, prefix_cache=False)
    plain = llm.generate("ab", temperature=0)
    guess = Script(lambda tokens, most: [120] * most)
    assert llm.generate("ab", temperature=0, draft=guess).text == plain.text
    assert plain.finish_reason == "length"
    options = {"temperature": 0, "max_tokens": 15}
    streams = [llm.stream(text, draft=guess, **options) for text in ("ab", "cd")]
    assert [stream.result.text for stream in streams] == ["x" * 15] * 2
    assert llm.metrics.preempted == 0
    settled(llm)


def test_parked_in_the_middle():
    llm = mock_llm(lambda seen: 97 + len(seen) % 7, cells=60)
    options = {"temperature": 0, "max_tokens": 30}
    alone = [llm.generate(text, **options).text for text in ("a", "bb", "ccc")]
    guess = Script(lambda tokens, most: [97 + (len(tokens) + i) % 7 for i in range(most)])
    streams = [llm.stream(text, draft=guess, **options) for text in ("a", "bb", "ccc")]
    assert [stream.result.text for stream in streams] == alone
    assert llm.metrics.preempted > 0
    settled(llm)


def test_a_drafter_that_raises_ends_its_request_alone():
    llm = mock_llm(lambda seen: 120)

    def fail(tokens, most):
        raise RuntimeError("mine")

    other = llm.stream("o", max_tokens=20, temperature=0)
    draft = Script(fail)
    with pytest.raises(RuntimeError, match="mine"):
        llm.generate("p", draft=draft, temperature=0)
    assert draft.closed == 1
    with pytest.raises(InvalidRequest, match="not in the vocabulary"):
        llm.generate("p", draft=Script(lambda tokens, most: [10**6]), temperature=0)
    assert other.result.text == "x" * 20
    settled(llm)


def test_a_callback_that_computes_a_sequence_finds_drafts_in_order():
    llm = mock_llm(lambda seen: 97 + len(seen) % 7)
    guess = Script(lambda tokens, most: [97 + (len(tokens) + i) % 7 for i in range(most)])
    options = {"temperature": 0, "max_tokens": 20}
    alone = [llm.generate(text, **options).text for text in ("a", "bb")]
    second = llm.stream("bb", draft=guess, **options)
    first = llm.stream("a", draft=guess, callback=lambda token: llm.sequence("z").step(), **options)
    assert [first.result.text, second.result.text] == alone
    settled(llm)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"draft": "look"},
            "draft must be 'lookup', 'suffix', 'mtp', 'auto', the path of an EAGLE-3 head, or a Drafter",
        ),
        ({"draft": 3}, "draft must be"),
        ({"draft": Script(None, most=0)}, "draft.most"),
        ({"draft": "lookup", "loop": "fused"}, "drafts are verified by the Python loop"),
        ({"draft": "lookup", "beams": 2}, "beams and draft do not go together"),
    ],
)
def test_what_does_not_go_together(options, words):
    with pytest.raises(InvalidRequest, match=words):
        mock_llm("Hi").generate("p", **options)


# -- who guesses --


def test_a_lookup_finds_what_followed():
    lookup = Lookup(2)
    assert lookup.propose([1, 2, 3, 4], 4) == []
    assert lookup.propose([1, 2, 3, 4, 1, 2], 2) == [3, 4]
    assert lookup.propose([1, 2, 3, 4, 1, 2], 6) == [3, 4, 1, 2, 3, 4]  # asked again
    lookup = Lookup(2)
    assert lookup.propose([5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]  # a passage that repeats itself
    assert lookup.propose([9, 9], 3) == []  # too short, and another text
    assert lookup.propose([1, 2, 7, 1, 2], 1) == [7]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_lookup_is_a_search_from_the_end(n):
    rng = random.Random(n)
    tokens, lookup = [], Lookup(n)
    for _ in range(300):
        tokens.append(rng.randrange(4))
        if rng.random() < 0.05:
            del tokens[rng.randrange(len(tokens)) :]
        found = lookup.propose(tokens, 1)
        last = tokens[len(tokens) - n :]
        places = [i for i in range(n, len(tokens)) if tokens[i - n : i] == last]
        assert found == ([tokens[places[-1]]] if places and len(tokens) > n else [])


def test_appetite_grows_with_success_and_pauses_after_failures():
    length = DraftLength(8)
    for expected in (2, 4, 8, 8):
        assert length.next() == expected
        length.learn(expected, expected)
    length.learn(8, 3)
    assert length.next() == 4
    length.learn(4, 0)
    assert [length.next() for _ in range(3)] == [0, 0, 2]
    length.learn(2, 0)
    assert [length.next() for _ in range(5)] == [0, 0, 0, 0, 2]
    for _ in range(20):
        length.learn(2, 0)
    assert [length.next() for _ in range(65)] == [0] * 64 + [2]


def test_a_model_guesses_for_another():
    def tiny(name, n_cells=256):
        return LLM(NativeBackend(tiny_file(name), tiny_spec(name), n_cells, 1), byte_tokenizer())

    with tiny("llama") as large, tiny("qwen2") as small:
        assert small.spec.n_vocab == large.spec.n_vocab
        options = {"max_tokens": 40, "ignore_eos": True, "seed": 2, "temperature": 0.3}
        plain = large.generate([1, 2, 3], **options)
        itself = DraftModel(large, most=6, least=0)
        for draft in (DraftModel(small, least=0), itself):
            assert large.generate([1, 2, 3], draft=draft, **options).tokens == plain.tokens
        assert large.metrics.accepted_tokens > 0
        settled(large)
        settled(small)


def test_a_model_drafts_for_itself(llm):
    options = {"max_tokens": 24, "ignore_eos": True, "temperature": 0}
    plain = llm.generate("Once upon a time", **options)
    before = llm.metrics.accepted_tokens, llm.metrics.drafted_tokens
    drafted = llm.generate("Once upon a time", draft=DraftModel(llm), **options)
    assert drafted.tokens == plain.tokens
    right, guessed = (now - then for now, then in zip(
        (llm.metrics.accepted_tokens, llm.metrics.drafted_tokens), before, strict=True
    ))  # fmt: skip
    assert right == guessed > 10  # it knows what it will say
    settled(llm)


def test_a_draft_ends_before_an_improbable_token(llm):
    tokens = llm.tokenizer.encode("Once upon a time")
    with llm.sequence(tokens) as sequence:
        row = sequence.logits
        probability = float(np.exp(row - row.max()).sum()) ** -1
    for least, some in ((0.0, True), (0.9 * probability, True), (min(1.0, 1.1 * probability), False)):
        proposer = DraftModel(llm, least=least).begin(llm.tokenizer)
        assert bool(proposer.propose(tokens, 4)) is some
        proposer.close()
    with pytest.raises(InvalidRequest, match="least"):
        DraftModel(llm, least=1.5)


def test_a_draft_model_with_other_tokens_is_refused(llm):
    with mock_llm("Hi") as other:
        with pytest.raises(InvalidRequest, match="has other tokens"):
            llm.generate("p", draft=DraftModel(other))
        assert other.generate("p", draft=DraftModel(other)).text == "Hi"
    with pytest.raises(InvalidRequest, match="takes a loaded model"):
        DraftModel("smollm2")
    with pytest.raises(InvalidRequest, match="most"):
        DraftModel(llm, most=0)
    with pytest.raises(InvalidRequest, match="ngram"):
        PromptLookup(ngram=0)


def test_a_draft_that_cannot_hold_the_text_guesses_nothing():
    long = mock_llm(lambda seen: 120)
    with mock_llm(lambda seen: 120, cells=8, context_length=8) as short:
        text = long.generate("abcdefghij", draft=DraftModel(short), temperature=0, max_tokens=20).text
    assert text == "x" * 20


def test_random_requests_with_guesses_equal_plain_ones():
    rng = random.Random(1)
    options = {"temperature": 0.9, "max_tokens": 25, "ignore_eos": True}

    def say(seen):
        row = np.zeros(258, np.float32)
        row[(sum(seen[-3:]) * 7 + len(seen)) % 40 + 60] = 4.0
        row[(seen[-1] * 3) % 40 + 60] = 4.5
        return row

    llm = mock_llm(say, cells=160, limits=Limits(max_tokens_per_step=24))
    plain = {seed: llm.generate("p" * (seed % 9 + 1), seed=seed, **options).tokens for seed in range(24)}
    drafts = [None, "lookup", PromptLookup(1, 5), Script(lambda t, n: [(t[-1] * 3) % 40 + 60] * n)]
    streams = {}
    for seed in rng.sample(range(24), 24):
        streams[seed] = llm.stream("p" * (seed % 9 + 1), seed=seed, draft=rng.choice(drafts), **options)
    for seed, stream in streams.items():
        assert stream.result.tokens == plain[seed]
    settled(llm)


# -- suffixes: the end of the text, in itself and in cached texts of the same key --


def propose(proposer, text, most=8):
    return proposer.propose(list(text), most)


def test_suffixes_prefer_the_longest_end():
    text = [5, 1, 2, 3, 9, 9, 0, 2, 3, 8, 8, 5, 1, 2, 3]
    assert propose(Suffixes(2), text, 4) == [9, 9, 0, 2]  # behind 5 1 2 3, not behind the later 2 3
    assert Suffixes(2).propose_branches(text, 3, 2) == [[9, 9, 0], [8, 8, 5]]
    assert propose(Suffixes(2), [1, 2, 3, 4]) == []


def test_a_short_end_makes_a_short_draft():
    text = [1, 2, *range(10, 40), 1, 2]
    assert propose(Suffixes(2), text, 16) == [10, 11, 12, 13]  # two tokens were the same


def test_suffixes_in_cached_texts_end_with_these():
    cached = [(1, 2, 3, 4, "image", 5), (7, 1, 2, 3, 6)]
    suffixes = Suffixes(3, lambda: cached)
    assert suffixes.propose_branches([9, 1, 2, 3], 4, 4) == [[4], [6]]  # the last used text first
    assert propose(suffixes, [0, 7, 1, 2, 3]) == [6]
    assert propose(suffixes, [3, 4, 6]) == []


def script_llm():
    rng = random.Random(3)
    text = bytes(rng.randrange(97, 123) for _ in range(120))
    return mock_llm(text.decode(), cells=1024)


def drafted(llm, prompt="Say: ", **options):
    result = llm.generate(prompt, draft="suffix", temperature=0, max_tokens=60, **options)
    assert result.tokens == llm.generate(prompt, temperature=0, max_tokens=60).tokens
    return result.usage


def test_a_text_that_comes_again_is_drafted_from_the_cache():
    with script_llm() as llm:
        first, again = drafted(llm), drafted(llm)
        assert first.accepted_tokens == 0
        assert again.accepted_tokens > 40
        assert again.drafted_tokens >= again.accepted_tokens
        assert first == dataclasses.replace(again, cached_tokens=first.cached_tokens)
        settled(llm)


def test_texts_of_another_key_draft_nothing():
    with script_llm() as llm:
        llm.generate("Say: ", temperature=0, max_tokens=60, cache_salt="a")
        before = llm.metrics.accepted_tokens
        result = llm.generate("Say: ", draft="suffix", temperature=0, max_tokens=60, cache_salt="b")
        assert result.usage.accepted_tokens == llm.metrics.accepted_tokens - before == 0
        again = llm.generate("Say: ", draft="suffix", temperature=0, max_tokens=60, cache_salt="a")
        assert again.tokens == result.tokens
        assert again.usage.accepted_tokens > 40


def test_usage_counts_what_metrics_count(llm):
    before = llm.metrics.drafted_tokens, llm.metrics.accepted_tokens
    results = llm.generate([COPY, COPY[:60]], draft="suffix", temperature=0, max_tokens=40, ignore_eos=True)
    counted = [(one.usage.drafted_tokens, one.usage.accepted_tokens) for one in results]
    assert sum(n for n, _ in counted) == llm.metrics.drafted_tokens - before[0] > 0
    assert sum(n for _, n in counted) == llm.metrics.accepted_tokens - before[1] > 0
    assert llm.generate(COPY, max_tokens=2).usage.drafted_tokens == 0
