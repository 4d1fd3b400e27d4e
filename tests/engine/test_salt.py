"""`cache_salt`: prompts share cached prefixes with those of the same salt, and with no others."""

import asyncio

import numpy as np
import pytest

import stretto
from recurrent_mock import recurrent_llm
from stretto.errors import InvalidRequest
from stretto.llm.texts import new_text
from stretto.testing import mock_llm
from tiny_vision import seeing_llm

SYSTEM = "You are a friendly cat. " * 4  # a token is a byte here


@pytest.fixture
def llm():
    return mock_llm("Meow", cells=1024)


def cached(llm, prompt=SYSTEM, **options):
    return llm.generate(prompt, temperature=0, **options).usage.cached_tokens


def test_a_hit_never_crosses_salts(llm):
    most = len(SYSTEM) - 1
    assert [cached(llm, cache_salt=salt) for salt in ("a", "b", None)] == [0, 0, 0]
    assert [cached(llm, cache_salt=salt) for salt in ("b", "a", None, "")] == [most] * 4
    assert cached(llm, cache_salt="c") == 0
    llm.cells.check()


def test_every_way_to_make_a_text_is_salted(llm):
    messages = [{"role": "user", "content": SYSTEM}]
    options = {"temperature": 0, "max_tokens": 2}

    def n_hits(salt):
        before = llm.cache.stats().hits
        llm.chat(messages, cache_salt=salt, **options)
        llm.stream(SYSTEM, cache_salt=salt, **options).result  # noqa: B018
        llm.generate([SYSTEM], stretto.Options(cache_salt=salt), n=2, **options)
        llm.parallel(SYSTEM, cache_salt=salt, max_tokens=2)
        asyncio.run(llm.achat(messages, cache_salt=salt, **options))
        with llm.sequence(SYSTEM, cache_salt=salt) as seq:
            seq.logits  # noqa: B018
        return llm.cache.stats().hits - before

    first, second = n_hits("a"), n_hits("b")
    assert first == second
    assert n_hits("a") > first


def test_requests_that_run_do_not_share_across_salts(llm):
    streams = [llm.stream(SYSTEM, temperature=0, cache_salt=salt) for salt in ("a", "b", "a")]
    for _ in zip(*streams, strict=True):
        pass
    assert [one.result.usage.cached_tokens for one in streams] == [0, 0, len(SYSTEM) - 1]
    with llm.sequence(SYSTEM, cache_salt="c") as held:
        held.logits  # noqa: B018
        assert cached(llm, cache_salt="d") == 0
        assert cached(llm, cache_salt="c") == len(SYSTEM) - 1


@pytest.mark.parametrize(("salts", "n_waiting"), [("ab", 0), ("aa", 1)])
def test_prompts_of_other_salts_do_not_wait_for_each_other(salts, n_waiting):
    llm = mock_llm("Meow", cells=4096, limits=stretto.Limits(max_tokens_per_step=16))
    engine = llm.engine
    engine.add(*(new_text(engine, SYSTEM * 4, {"cache_salt": salt}) for salt in salts))
    engine.step()
    assert len(engine.scheduler.waiting) == n_waiting
    engine.scheduler.cancel_all()


def test_recurrent_states_do_not_cross_salts():
    llm = recurrent_llm()
    prompt = list(b"A text of some length, again and again. " * 8)
    first = [cached(llm, prompt, cache_salt=salt, max_tokens=2) for salt in ("a", "b", None)]
    assert first == [0, 0, 0]
    assert cached(llm, [*prompt, 5], cache_salt="a", max_tokens=2) > 0


def test_forks_and_samples_keep_the_salt(llm):
    with llm.sequence(SYSTEM, cache_salt="a") as seq, seq.fork() as fork:
        fork.append("Meow")
        fork.logits  # noqa: B018
    assert cached(llm, SYSTEM + "Meow!") == 0
    assert cached(llm, SYSTEM + "Meow!", cache_salt="a") == len(SYSTEM + "Meow")
    llm.generate("Some other text", n=3, cache_salt="b", temperature=0)
    assert cached(llm, "Some other text") == 0


def test_a_sequence_is_continued_with_its_own_salt(llm):
    with llm.sequence(SYSTEM, cache_salt="a") as seq:
        with pytest.raises(InvalidRequest, match=r"llm\.sequence"):
            llm.generate(seq, cache_salt="b")
        with pytest.raises(InvalidRequest, match=r"llm\.sequence"):
            llm.parallel(seq, cache_salt="b")
        assert llm.generate(seq, cache_salt="a", temperature=0).text == "Meow"
    assert cached(llm) == 0


def test_pins_are_found_by_their_salt_alone(llm):
    with llm.sequence(SYSTEM, cache_salt="a") as seq:
        llm.cache.pin(seq)
    llm.cache.clear()
    assert cached(llm, cache_salt="b") == 0
    assert cached(llm, cache_salt="a") == len(SYSTEM) - 1


def test_texts_that_are_scored_or_embedded_share_nothing(llm):
    score = llm.engine.runner.new_track
    made = []

    def new_track(*arguments):
        made.append(score(*arguments))
        return made[-1]

    llm.engine.runner.new_track = new_track
    llm.score(SYSTEM)
    assert made[0].domain.private == made[0].id


def test_the_table_tells_whose_a_sequence_is(llm):
    cached(llm, "one", cache_salt="a")
    with llm.sequence("two", cache_salt="b") as held:
        held.logits  # noqa: B018
        cached(llm, "three")
        assert llm.cells.owned("b") == {held.id}
        assert llm.cells.owned("c") == set()
        shown = llm.cells.snapshot("b")
        assert bytes(cell["token"] for cell in shown["used"]) == b"two"
        assert [entry["id"] for entry in shown["sequences"]] == [held.id]
        assert bytes(cell["token"] for cell in llm.cells.snapshot("")["used"]) == b"threeMeow"
        assert llm.cells.snapshot("c")["used"] == []
        assert len(llm.cells.snapshot()["sequences"]) == 3


def test_images_are_encoded_for_each_salt():
    llm = seeing_llm("mlp")
    image = stretto.Image.open(np.zeros((24, 32, 3), np.uint8))

    def n_encoded(salt):
        before = llm.vision.n_encoded
        llm.generate(("What? ", image), max_tokens=1, cache_salt=salt)
        return llm.vision.n_encoded - before

    first = n_encoded("a")
    assert first == n_encoded("b") == n_encoded(None) > 0
    assert n_encoded("a") == n_encoded("b") == n_encoded("") == 0
    llm.close()


def test_a_salt_is_a_short_text(llm):
    for salt in (1, b"a", "x" * 257, ["a"]):
        with pytest.raises(InvalidRequest, match="cache_salt must be a text"):
            llm.generate("x", cache_salt=salt)
        with pytest.raises(InvalidRequest, match="cache_salt must be a text"):
            llm.sequence("x", cache_salt=salt)
