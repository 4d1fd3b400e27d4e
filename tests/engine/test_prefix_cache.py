"""What is in the cache already is not computed again, and nothing else is ever taken for it."""

import gc

import pytest

from stretto.errors import InvalidRequest
from stretto.testing import mock_llm

SYSTEM = "You are a friendly cat. " * 4  # a token is a byte here


def computed(llm):
    """The tokens that went through `forward` since the last call."""
    total = sum(len(tokens) for tokens in llm.backend.batches)
    llm.backend.batches.clear()
    return total


@pytest.fixture
def llm():
    return mock_llm("Meow", cells=1024)


def ask(llm, prompt, **options):
    return llm.generate(prompt, temperature=0, **options)


def test_a_prompt_again_costs_one_token(llm):
    first = ask(llm, SYSTEM)
    assert computed(llm) == len(SYSTEM) + 4
    assert first.usage.cached_tokens == 0
    second = ask(llm, SYSTEM)
    assert (second.text, second.usage.cached_tokens) == ("Meow", len(SYSTEM) - 1)
    assert computed(llm) == 1 + 4


def test_a_beginning_is_enough(llm):
    ask(llm, SYSTEM + "What is a dog?")
    computed(llm)
    assert ask(llm, SYSTEM + "Who are you?").usage.cached_tokens == len(SYSTEM + "Wh")
    assert computed(llm) == len("o are you?") + 4


def test_the_answer_is_part_of_the_next_prompt(llm):
    ask(llm, SYSTEM)
    computed(llm)
    ask(llm, SYSTEM + "Meow" + "!")
    assert computed(llm) == 1 + 4


def test_chat_stream_and_sequence_share_it(llm):
    messages = [{"role": "user", "content": SYSTEM}]
    llm.chat(messages, temperature=0)
    computed(llm)
    for _ in llm.stream(llm.chat_prompt(messages), temperature=0):
        pass
    assert computed(llm) == 1 + 4
    with llm.sequence(llm.chat_prompt(messages)) as seq:
        seq.logits  # noqa: B018
        assert seq.n_cached == len(seq) - 1
    assert computed(llm) == 1


def test_prompts_of_a_list_share_their_beginning(llm):
    prompts = [SYSTEM + question for question in ("one?", "two?", "three?", "four?")]
    results = ask(llm, prompts)
    assert [result.text for result in results] == ["Meow"] * 4
    assert [result.usage.cached_tokens >= len(SYSTEM) for result in results] == [False, True, True, True]
    most = len(SYSTEM) + sum(len(prompt) - len(SYSTEM) + 4 for prompt in prompts)
    assert computed(llm) <= most


def test_a_live_sequence_can_be_shared(llm):
    seq = llm.sequence(SYSTEM)
    seq.logits  # noqa: B018
    computed(llm)
    assert ask(llm, SYSTEM + "!").text == "Meow"
    assert computed(llm) == 1 + 4
    assert seq.text == SYSTEM


def test_only_what_was_not_edited_is_matched(llm):
    with llm.sequence(SYSTEM) as seq:
        seq.logits  # noqa: B018
        seq.remove(10, 12)
        seq.append("abc")
    computed(llm)
    assert ask(llm, SYSTEM).usage.cached_tokens == 10
    llm.cache.clear()
    with llm.sequence(SYSTEM) as seq:
        seq.logits  # noqa: B018
        seq.remove(10, 12, close=True)
    assert ask(llm, seq.text).usage.cached_tokens == 10
    llm.cache.clear()
    with llm.sequence(SYSTEM) as seq:
        seq.truncate(20)
        seq.append("abc")
        seq.logits  # noqa: B018
    assert ask(llm, SYSTEM[:20] + "abcd").usage.cached_tokens == 23  # cutting off is no edit


def test_cells_changed_by_hand_are_not_matched(llm):
    a, b = llm.sequence("a" * 50), llm.sequence("b" * 50)
    a.logits, b.logits  # noqa: B018
    llm.cells.remove(a.id, 20)
    llm.cells.copy(b.id, a.id, 20)
    assert a.text == "a" * 20 + "b" * 30
    a.close()
    b.close()
    assert ask(llm, "a" * 20 + "b" * 30).usage.cached_tokens == 20


def test_parked_cells_go_when_they_are_needed():
    llm = mock_llm("Meow", cells=256)
    for letter in "abcdef":
        ask(llm, letter * 100)
    assert llm.cells.n_used <= 256
    assert llm.cache.stats().evictions > 0
    computed(llm)
    assert ask(llm, "f" * 100).usage.cached_tokens == 99


def test_pin(llm):
    with llm.sequence(SYSTEM) as seq:
        pin = llm.cache.pin(seq)
    assert pin.n_tokens == len(SYSTEM)
    for letter in "abcdefghijkl":
        ask(llm, letter * 200)
    llm.cache.clear()
    assert llm.cache.stats().pinned == 1
    assert ask(llm, SYSTEM + "!").usage.cached_tokens == len(SYSTEM)
    pin.release()
    pin.release()
    llm.cache.clear()
    assert llm.cells.n_used == 0
    with pytest.raises(InvalidRequest, match="not a sequence of this model"):
        llm.cache.pin("abc")
    with pytest.raises(InvalidRequest, match="not a sequence of this model"):
        llm.cache.pin(mock_llm("x").sequence("a"))


def test_stats(llm):
    ask(llm, SYSTEM)
    ask(llm, SYSTEM)
    stats = llm.cache.stats()
    assert (stats.lookups, stats.hits, stats.tokens_saved) == (2, 1, len(SYSTEM) - 1)
    assert (stats.cells, stats.free + stats.parked, stats.held) == (1024, 1024, 0)
    assert stats.sequences == 1
    with llm.sequence("abc") as seq:
        seq.logits  # noqa: B018
        assert llm.cache.stats().held == 3


def test_without_it_nothing_stays():
    llm = mock_llm("Meow", prefix_cache=False)
    ask(llm, SYSTEM)
    assert llm.cells.n_used == 0
    computed(llm)
    ask(llm, SYSTEM)
    assert computed(llm) == len(SYSTEM) + 4
    with pytest.raises(InvalidRequest, match="prefix_cache=False"):
        llm.cache.pin(llm.sequence("a"))


def test_a_forgotten_sequence_is_parked(llm):
    seq = llm.sequence(SYSTEM)
    seq.logits  # noqa: B018
    del seq
    gc.collect()
    assert llm.cache.stats().held == 0
    assert ask(llm, SYSTEM).usage.cached_tokens == len(SYSTEM) - 1


def test_the_last_token_is_always_computed(llm):
    ask(llm, "a")
    computed(llm)
    ask(llm, "a")
    assert computed(llm) == 1 + 4
