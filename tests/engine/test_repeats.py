"""The repeat guard: which texts it ends, and that every way to generate ends them at the same token."""

import asyncio
import re

import pytest

import stretto
from repeat_texts import LOOPS, TEXTS
from stretto import Grammar, InvalidRequest, Options
from stretto.testing import mock_llm
from stretto.text.stops import CHECK_TOKENS, MAX_PERIOD, MIN_COPIES, MIN_TOKENS, RepeatGuard

GREEDY = {"temperature": 0, "repeat_guard": True}


def repeats_at(tokens):
    """After how many tokens a text is found to repeat itself; None if it is not."""
    guard = RepeatGuard()
    return next((n for n, token in enumerate(tokens, 1) if guard.push(token)), None)


def pieces(text):
    """A text in words, digits and single characters: finer than a tokenizer, of which there are many."""
    found = re.findall(r"[^\W\d]+|\d|\s|[^\w\s]", text)
    numbers = {}
    return [numbers.setdefault(piece, len(numbers)) for piece in found]


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with stretto.load(smollm2_path, cells=1024) as llm:
        yield llm


@pytest.fixture
def encode(llm):
    return llm.tokenizer.encode


# -- which texts --


def test_there_are_30_texts_and_20_loops():
    assert (len(TEXTS), len(LOOPS)) == (30, 20)


@pytest.mark.parametrize("name", TEXTS)
def test_real_texts_are_left_alone(encode, name):
    assert repeats_at(encode(TEXTS[name])) is None
    assert TEXTS[name]


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_ended(encode, name):
    tokens = encode(LOOPS[name])
    assert (repeats_at(tokens) or 1 << 30) <= max(MIN_TOKENS, len(tokens) * 3 // 4) + CHECK_TOKENS
    assert repeats_at(pieces(LOOPS[name] * 2)) is not None


@pytest.mark.parametrize("period", [1, 2, 3, 7, 19, 50, 99, 100, 101, 150, 200, MAX_PERIOD])
@pytest.mark.parametrize("n_before", [0, 5, 16, 700])
def test_a_text_is_ended_within_a_look_of_its_last_copy(period, n_before):
    tokens = [*range(-n_before, 0), *list(range(period)) * 1000]
    wanted = n_before + max(MIN_COPIES * period, MIN_TOKENS)
    found = repeats_at(tokens)
    assert wanted <= found < wanted + CHECK_TOKENS
    assert found % CHECK_TOKENS == 0


def test_a_passage_with_equal_tokens_inside_is_one():
    line = [1, 2, 1, 2, 1, 2, 9]  # as "0, 0, 0" in a row
    assert repeats_at(line * 100) is not None
    assert repeats_at([9, *[1, 2] * 15] * 20) is not None


def test_what_is_not_repeated_often_enough_is_left_alone():
    assert repeats_at(list(range(5000))) is None
    assert repeats_at([*[1] * (MIN_TOKENS - 1), 2] * 10) is None
    assert repeats_at([*range(MAX_PERIOD)] * (MIN_COPIES - 1)) is None
    assert repeats_at([*range(MAX_PERIOD + 1)] * 20) is None
    assert repeats_at([token for n in range(2000) for token in (1, 2, 3, n)]) is None


def test_a_fork_goes_its_own_way():
    guard = RepeatGuard()
    assert not any(guard.push(1) for _ in range(MIN_TOKENS - 1))
    twin = guard.fork()
    assert twin.push(1)
    assert not guard.push(2)


# -- every way to generate --


def loop(period, start=0):
    """A script that says the same letters over and over behind the prompt of one token."""
    return lambda seen: ord("a") + (len(seen) - start) % period


@pytest.mark.parametrize("period", [1, 3, 24])
def test_a_text_ends_with_its_own_reason(period):
    llm = mock_llm(loop(period), cells=4096)
    result = llm.generate([65], **GREEDY)
    assert (result.finish_reason, result.stop_reason) == ("repetition", None)
    assert len(result.tokens) == MIN_TOKENS
    assert result.usage.completion_tokens == MIN_TOKENS
    stream = llm.stream([65], **GREEDY)
    assert [token.finish_reason for token in stream][-2:] == [None, "repetition"]
    assert stream.result.tokens == result.tokens
    assert llm.metrics.finished["repetition"] == 2


def test_it_is_off_unless_asked_for_and_with_ignore_eos():
    llm = mock_llm(loop(2), cells=4096)
    for options in ({"repeat_guard": False}, {}, {"repeat_guard": True, "ignore_eos": True}):
        result = llm.generate([65], temperature=0, max_tokens=900, **options)
        assert (result.finish_reason, len(result.tokens)) == ("length", 900)
    with pytest.raises(InvalidRequest, match="repeat_guard must be True or False, not 1"):
        llm.generate([65], repeat_guard=1)
    with pytest.raises(InvalidRequest, match="repeat_guard"):
        llm.parallel([65], repeat_guard=True)
    assert Options(repeat_guard=True)["repeat_guard"] is True


def test_limits_and_stop_strings_come_first():
    llm = mock_llm(loop(2), cells=4096)
    assert llm.generate([65], max_tokens=MIN_TOKENS, **GREEDY).finish_reason == "length"
    late = llm.generate([65], min_tokens=500, **GREEDY)
    assert (late.finish_reason, len(late.tokens)) == ("repetition", 512)
    text = mock_llm(lambda seen: ord("x") if len(seen) == MIN_TOKENS else ord("a"), cells=4096)
    assert text.generate([65], stop="x", **GREEDY).finish_reason == "stop"


@pytest.mark.parametrize("way", ["batch", "n", "best_of", "lookup", "async", "beams"])
def test_every_way_ends_at_the_same_token(way):
    llm = mock_llm(loop(5), cells=16384)
    plain = llm.generate([65], loop="python", **GREEDY)
    match way:
        case "batch":
            found = llm.generate([[65], [66], [67]], **GREEDY)
        case "n":
            found = llm.generate([65], n=3, **GREEDY)
        case "best_of":
            found = [llm.generate([65], best_of=2, **GREEDY)]
        case "lookup":
            found = [llm.generate([65], draft="lookup", **GREEDY)]
        case "async":
            found = [asyncio.run(llm.agenerate([65], **GREEDY))]
        case "beams":
            found = [llm.generate([65], beams=2, repeat_guard=True)]
    assert [one.tokens for one in found] == [plain.tokens] * len(found)
    assert {one.finish_reason for one in found} == {"repetition"}


@pytest.mark.parametrize("loop_name", ["python", "fused"])
def test_both_loops_end_at_the_same_token(llm, loop_name):
    token = llm.tokenizer.encode(" sea")[-1]
    told = []
    result = llm.generate(
        "The", logit_bias={token: 100.0}, loop=loop_name, callback=told.append, cache_salt=loop_name, **GREEDY
    )
    assert (result.finish_reason, result.tokens) == ("repetition", [token] * MIN_TOKENS)
    assert (len(told), told[-1].finish_reason) == (MIN_TOKENS, "repetition")
    assert llm.cache.stats().held == 0


def test_a_sequence_keeps_the_text_and_goes_on():
    llm = mock_llm(loop(4), cells=4096)
    seq = llm.sequence([65])
    first = llm.generate(seq, **GREEDY)
    assert list(seq.tokens) == [65, *first.tokens]
    again = llm.generate(seq, **GREEDY)
    assert (again.finish_reason, len(again.tokens)) == ("repetition", MIN_TOKENS)


# -- grammars --


def test_forced_tokens_do_not_count():
    llm = mock_llm(loop(1), cells=4096)
    forced = llm.generate([65], grammar=Grammar.regex("(abc){200}"), **GREEDY)
    assert (forced.finish_reason, forced.text) == ("stop", "abc" * 200)


def test_tokens_that_the_model_chooses_in_a_grammar_do():
    llm = mock_llm(loop(1), cells=8192, context_length=8192)
    result = llm.generate([65], grammar=Grammar.regex("[ab]+"), **GREEDY)
    assert (result.finish_reason, result.text) == ("repetition", "a" * MIN_TOKENS)
    mixed = llm.generate([65], grammar=Grammar.regex("([ab]cd)+"), **GREEDY)
    assert (mixed.finish_reason, mixed.text) == ("repetition", "acd" * (MIN_TOKENS - 1) + "a")
