"""Requests with adapters: several in one batch, never a prefix of another's, forks and drafts included."""

import asyncio

import numpy as np
import pytest

from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest, Unsupported
from stretto.llm import LLM
from stretto.testing import byte_tokenizer, mock_llm
from tiny_adapters import matrices, random_pairs, write_adapter
from tiny_models import tiny_file, tiny_spec

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
PROMPT = [5, 17, 9, 33, 2, 40, 11, 3, 17, 9, 33, 8, 21, 6]


def new_llm(tmp_path, threads=2, **options):
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama", 512), 512, threads)
    llm = LLM(backend, byte_tokenizer(), **options)
    for seed, name in enumerate(("one", "two"), 1):
        path = tmp_path / f"{name}.gguf"
        if not path.exists():
            write_adapter(path, "llama", random_pairs(matrices("llama"), seed=seed, size=0.15))
        llm.load_adapter(name, path)
    return llm


@pytest.fixture
def llm(tmp_path):
    with new_llm(tmp_path) as found:
        yield found


@pytest.fixture
def cold(tmp_path):
    """A model that keeps no prefixes."""
    with new_llm(tmp_path, prefix_cache=False) as found:
        yield found


def tokens(llm, **options):
    return llm.generate(PROMPT, **GREEDY, **options).tokens


def test_adapters_change_texts_each_in_its_own_way(llm):
    texts = {tuple(tokens(llm, adapter=adapter)) for adapter in (None, "one", "two", {"one": 0.5, "two": 1})}
    assert len(texts) == 4


def test_requests_with_different_adapters_run_together_with_the_tokens_they_have_alone(llm, cold):
    adapters = [None, "one", "two", {"one": 0.4, "two": -0.3}, "one", None]
    alone = [tokens(cold, adapter=adapter) for adapter in adapters]

    async def together():
        jobs = [llm.agenerate(PROMPT, **GREEDY, adapter=adapter) for adapter in adapters]
        return [result.tokens for result in await asyncio.gather(*jobs)]

    assert asyncio.run(together()) == alone


@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17])
def test_rows_have_the_same_bits_however_threads_take_turns(tmp_path, cold, rows):
    """With few rows threads go on while others still compute A x; four are preempted anywhere."""
    adapters = (None, "one", "two", {"one": 0.4, "two": -0.3})
    with new_llm(tmp_path, threads=4, prefix_cache=False) as llm:
        prompts = [[*PROMPT, row] for row in range(rows)]
        found = []
        for _ in range(12):
            sequences = [
                llm.sequence(prompt, adapter=adapters[row % 4]) for row, prompt in enumerate(prompts)
            ]
            found.append(np.array(llm.logits(sequences)))
            for sequence in sequences:
                sequence.close()
        expected = []
        for row, prompt in enumerate(prompts):
            with cold.sequence(prompt, adapter=adapters[row % 4]) as alone:
                expected.append(np.array(alone.logits))
    for each in found:
        np.testing.assert_array_equal(each, expected)


def test_a_prefix_of_another_adapter_is_never_used(llm, cold):
    for adapter in (None, "one", "two", {"one": 0.5}, "one", None):
        result = llm.generate(PROMPT, **GREEDY, adapter=adapter)
        assert result.tokens == tokens(cold, adapter=adapter)
    hits = llm.cache.stats().hits
    assert hits == 2  # the last two had run before


def test_salts_and_adapters_are_both_in_the_key_of_the_cache(llm):
    def cached(**options):
        return llm.generate(PROMPT, **GREEDY, **options).usage.cached_tokens

    assert cached(adapter="one", cache_salt="a") == 0
    assert cached(adapter="one", cache_salt="b") == 0
    assert cached(adapter="two", cache_salt="a") == 0
    assert cached(adapter="one") == 0
    assert cached(adapter="one", cache_salt="a") == len(PROMPT) - 1


def test_logits_of_sequences_are_those_of_a_fresh_model(llm, cold):
    several = [llm.sequence(PROMPT, adapter=name) for name in (None, "one", "two")]
    fresh = [cold.sequence(PROMPT, adapter=name) for name in (None, "one", "two")]
    rows = llm.logits(several)
    for row, sequence in zip(rows, fresh, strict=True):
        assert np.array_equal(row, sequence.logits)


def test_a_fork_keeps_the_adapter(llm, cold):
    with llm.sequence(PROMPT, adapter="one") as sequence, sequence.fork() as fork:
        assert fork.adapter == {"one": 1.0}
        assert llm.generate(fork, **GREEDY).tokens == tokens(cold, adapter="one")


def test_n_samples_and_beams_have_the_adapter(llm, cold):
    first, second = llm.generate(PROMPT, **GREEDY, adapter="two", n=2)
    assert first.tokens == second.tokens == tokens(cold, adapter="two")
    options = {"beams": 2, "max_tokens": 6, "ignore_eos": True}
    assert llm.generate(PROMPT, **options, adapter="one").tokens == (
        cold.generate(PROMPT, **options, adapter="one").tokens
    )


@pytest.mark.parametrize("loop", ["python", "fused"])
def test_both_loops_and_streams_give_the_same(llm, cold, loop):
    expected = tokens(cold, adapter={"one": 0.8})
    assert tokens(llm, adapter={"one": 0.8}, loop=loop) == expected
    assert [token.id for token in llm.stream(PROMPT, **GREEDY, adapter={"one": 0.8})] == expected


def test_drafts_leave_the_text_as_it_is(llm, cold):
    assert tokens(llm, adapter="one", draft="lookup") == tokens(cold, adapter="one")


def test_scores_are_those_of_the_adapter(llm):
    ids = PROMPT
    with llm.sequence(ids[:-1], adapter="one") as sequence:
        row = sequence.logits.astype(np.float64)
    expected = row[ids[-1]] - np.log(np.exp(row - row.max()).sum()) - row.max()
    assert llm.score(ids, adapter="one")[-1] == pytest.approx(expected, abs=1e-4)
    assert llm.score(ids)[-1] != pytest.approx(expected, abs=1e-4)


def test_a_scale_of_nothing_is_the_model_itself(llm):
    assert tokens(llm, adapter={"one": 0.0}) == tokens(llm)
    assert llm.generate(PROMPT, **GREEDY, adapter={}).usage.cached_tokens > 0


def test_parallel_runs_have_adapters(llm):
    options = {"threshold": 1.0, "max_tokens": 8, "ignore_eos": True}
    assert llm.parallel(PROMPT, adapter="one", **options).tokens != llm.parallel(PROMPT, **options).tokens


def test_adapters_are_listed_and_unloaded_once_nothing_uses_them(llm):
    assert list(llm.adapters) == ["one", "two"]
    assert llm.adapters["one"].rank == 4
    assert llm.adapters["one"].matrices == len(matrices("llama"))
    sequence = llm.sequence(PROMPT, adapter={"one": 1, "two": 1})
    with pytest.raises(InvalidRequest, match="'one' is in use by 1 sequences"):
        llm.unload_adapter("one")
    sequence.close()
    llm.unload_adapter("one")
    assert list(llm.adapters) == ["two"]
    with pytest.raises(InvalidRequest, match="no adapter 'one' is loaded, only 'two'"):
        tokens(llm, adapter="one")


def test_another_adapter_of_the_same_name_does_not_find_the_first_ones_prefixes(llm, tmp_path):
    first = tokens(llm, adapter="one")
    llm.unload_adapter("one")
    llm.load_adapter("one", tmp_path / "two.gguf")
    assert tokens(llm, adapter="one") != first
    assert llm.cache.stats().hits == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapter": "three"}, "no adapter 'three' is loaded, only 'one', 'two'"),
        ({"adapter": 3}, "adapter must be the name of one"),
        ({"adapter": {"one": "much"}}, "the scale of adapter 'one' must be a number"),
        ({"adapter": {"one": float("nan")}}, "the scale of adapter 'one' must be a number"),
        ({"adapter": {"one": 1e9}}, "from -1000 to 1000"),
        ({"adapter": {str(n): 1 for n in range(17)}}, "at most 16"),
    ],
)
def test_wrong_adapters_are_refused_by_name(llm, options, message):
    with pytest.raises(InvalidRequest, match=message) as error:
        llm.generate(PROMPT, **options)
    assert error.value.param == "adapter"


def test_a_sequence_is_not_continued_with_another_adapter(llm):
    with llm.sequence(PROMPT, adapter="one") as sequence:
        with pytest.raises(InvalidRequest, match="computed with the adapter one"):
            llm.generate(sequence, adapter="two")
        assert llm.generate(sequence, **GREEDY, adapter="one").tokens


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "base:one", 3])
def test_names_are_checked(llm, name, tmp_path):
    with pytest.raises(InvalidRequest, match="name must be"):
        llm.load_adapter(name, tmp_path / "one.gguf")


def test_a_name_is_given_once(llm, tmp_path):
    with pytest.raises(InvalidRequest, match="'one' is loaded already"):
        llm.load_adapter("one", tmp_path / "two.gguf")


def test_a_backend_without_adapters_names_one_that_has_them(tmp_path):
    with mock_llm("Hi") as llm, pytest.raises(Unsupported, match="backend='native' does"):
        llm.load_adapter("one", tmp_path / "one.gguf")
