"""Forced tokens by the thousand: in steps, between which deadlines, cancellation and other requests count."""

import pytest

from stretto import Grammar
from stretto.engine.decoders.plain import MAX_FORCED_STEP
from stretto.llm.texts import new_text
from stretto.testing import mock_llm

LONG = "".join(f"{number:04} and so on; " for number in range(400))  # 6,400 tokens without a choice
OPTIONS = {"temperature": 0, "grammar": Grammar.choices([LONG])}
BEHIND = {"temperature": 0, "grammar": Grammar.regex(f"[ab]({LONG})")}


@pytest.fixture
def llm():
    with mock_llm(lambda seen: ord("a"), cells=16384, context_length=8192) as made:
        yield made


def steps_of(llm, options, most=1000):
    """How many tokens come in each step of the only request, and the request."""
    request = new_text(llm.engine, "x", options)
    llm.engine.add(request)
    counts = []
    while not request.finished and len(counts) < most:
        before = len(request.output.tokens)
        llm.engine.step()
        counts.append(len(request.output.tokens) - before)
    return counts, request


@pytest.mark.parametrize(("options", "text"), [(OPTIONS, LONG), (BEHIND, "a" + LONG)])
def test_a_step_gives_out_so_many_and_no_more(llm, options, text):
    counts, request = steps_of(llm, options)
    assert max(counts) <= 2 * MAX_FORCED_STEP  # those before the first choice come with one step more
    assert request.result().text == text
    assert request.result().stop_reason == "grammar"
    assert llm.generate("x", **options).text == text


@pytest.mark.parametrize("options", [OPTIONS, BEHIND])
def test_a_deadline_holds_between_them(llm, options):
    counts, request = steps_of(llm, options, most=3)
    assert 0 < sum(counts) < len(LONG)
    request.deadline = 0.0
    llm.engine.step()
    assert request.finish_reason == "timeout"
    assert LONG.startswith(request.result().text.removeprefix("a"))


def test_cancelling_counts_between_them(llm):
    counts, request = steps_of(llm, OPTIONS, most=2)
    request.abandon()
    llm.engine.step()
    assert request.finish_reason == "cancelled"
    assert sum(counts) < len(LONG)
    assert llm.cache.stats().held == 0


def test_others_get_their_turn_meanwhile(llm):
    _, request = steps_of(llm, OPTIONS, most=1)
    other = new_text(llm.engine, "hello", {"max_tokens": 5, "temperature": 0})
    llm.engine.add(other)
    for _ in range(6):
        llm.engine.step()
    assert other.finished
    assert not request.finished


def test_drafts_do_not_lose_any(llm):
    assert llm.generate("x", draft="lookup", **BEHIND).text == "a" + LONG
    assert [one.text for one in llm.generate("x", n=2, **OPTIONS)] == [LONG, LONG]


def test_a_sequence_has_the_text_that_was_cut(llm):
    with llm.sequence("x") as seq:
        result = llm.generate(seq, max_tokens=MAX_FORCED_STEP + 10, **OPTIONS)
        assert seq.text == "x" + result.text == "x" + LONG[: MAX_FORCED_STEP + 10]


def test_forced_tokens_that_are_cached_are_not_of_the_prompt(llm):
    options = {"grammar": Grammar.choices(["a rather long text"])}
    first, second = (llm.generate("Hi", **options).usage for _ in range(2))
    beams = llm.generate("Hi", beams=2, **options).usage
    assert [usage.cached_tokens for usage in (first, second, beams)] == [0, 2, 2]
    assert second.prompt_tokens == 2
