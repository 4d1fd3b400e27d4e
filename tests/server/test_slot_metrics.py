"""`/metrics` of a model with recurrent layers, of one that makes vectors, and of one that was unloaded."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from recurrent_mock import recurrent_llm
from stretto import Limits
from stretto.llm.encoder import Encoder
from stretto.server.http.keys import Keys
from stretto.server.http.metrics import Scrapes, render
from stretto.server.http.served_model import ServedModel
from stretto.server.http.state import Caller
from stretto.server.settings import ModelEntry
from stretto.testing import byte_tokenizer, mock_llm
from tiny_encoders import native


def state_with(llm):
    model = ServedModel(ModelEntry("m", "m"), Path("m"), 0, {"verbs": llm.verbs}, llm=llm, loads=1)
    registry = SimpleNamespace(models={"m": model}, loaded_bytes=0, limit=0)
    traffic = SimpleNamespace(answered={}, active=0)
    parts = {Scrapes: Scrapes(), Keys: Keys()}
    return SimpleNamespace(registry=registry, traffic=traffic, labels={}, part=parts.get)


def shown(state):
    return render(state, Caller())


def test_slots_are_shown_where_there_are_any():
    with recurrent_llm() as llm, llm.sequence("abc") as seq:
        seq.logits  # noqa: B018
        text = shown(state_with(llm))
    assert 'stretto_slots{model="m"} 32' in text
    assert 'stretto_slots_used{model="m"} 1' in text
    assert 'stretto_slot_bytes{model="m"} 16' in text
    assert "stretto_slots" not in shown(state_with(mock_llm("abc")))


def test_texts_of_encoders_are_counted_by_llama_servers_names():
    with Encoder(native("bert", 1), byte_tokenizer()) as encoder:
        encoder.embed([[1, 2, 3], [4, 5]])
        text = shown(state_with(encoder))
    assert "llamacpp:prompt_tokens_total 5" in text
    assert "llamacpp:n_decode_total 1" in text
    assert "llamacpp:tokens_predicted_total 0" in text


def value(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(name + " ")]
    return float(line.split()[-1])


def test_counters_outlive_an_unloaded_model():
    with mock_llm("abc") as llm, mock_llm("abc") as again:
        state = state_with(llm)
        slot = state.registry.models["m"]
        llm.generate("x", max_tokens=3)
        before = shown(state)
        slot.note_unload()
        slot.llm = None
        unloaded = shown(state)
        slot.llm = again
        again.generate("x", max_tokens=3)
        after = shown(state)
    names = ("llamacpp:tokens_predicted_total", "llamacpp:n_decode_total", 'stretto_added_total{model="m"}')
    for name in names:
        assert value(before, name) > 0
        assert value(unloaded, name) == value(before, name)
        assert value(after, name) == 2 * value(before, name)
    finished = 'stretto_finished_total{model="m",reason="length"}'
    assert (value(unloaded, finished), value(after, finished)) == (1, 2)
    assert 'stretto_first_token_seconds_count{model="m"} 2' in after
    assert "stretto_running" not in unloaded
    assert "stretto_cells_used" not in unloaded


def test_llama_servers_rates_are_those_since_the_last_scrape():
    with mock_llm("abc") as llm:
        state = state_with(llm)
        for _ in range(2):
            llm.generate("x", max_tokens=3)
            assert value(shown(state), "llamacpp:predicted_tokens_seconds") > 0
            assert value(shown(state), "llamacpp:predicted_tokens_seconds") == 0


def test_times_in_the_queue_are_counted_apart_from_those_of_computing():
    with mock_llm("abc", limits=Limits(max_running=1)) as llm:
        llm.generate(["one", "two", "three"], max_tokens=3, seed=1)
        metrics = llm.metrics
        assert [metrics.queue.n, metrics.prefill.n, metrics.decode.n, metrics.total.n] == [3, 3, 3, 3]
        assert metrics.queue.total > 0
        parts = metrics.queue.total + metrics.prefill.total + metrics.decode.total
        assert parts <= metrics.total.total
        assert metrics.prompt_length.total == sum(map(len, ("one", "two", "three")))
        assert metrics.text_length.total == 9
        assert metrics.queue.total + metrics.prefill.total == pytest.approx(metrics.first_token.total)


def test_cells_that_can_be_evicted_are_not_in_use():
    with mock_llm("abc", cells=64) as llm:
        llm.generate("abcdefgh" * 4, max_tokens=3)
        state = state_with(llm)
        assert value(shown(state), 'stretto_cells_used{model="m"}') > 30
        assert value(shown(state), 'vllm:kv_cache_usage_perc{model_name="m",engine="0"}') == 0
        with llm.sequence("x" * 16) as seq:
            seq.logits  # noqa: B018
            llm.generate("y", max_tokens=2)
            assert value(shown(state), 'vllm:kv_cache_usage_perc{model_name="m",engine="0"}') == 0.25


def test_threads_are_those_of_passes():
    with mock_llm("abc") as llm:
        state = state_with(llm)
        assert value(shown(state), 'stretto_threads{model="m"}') == 0
        llm.generate("x", max_tokens=1)
        assert value(shown(state), 'stretto_threads{model="m"}') == 1
    with Encoder(native("bert", 1), byte_tokenizer()) as encoder:
        encoder.embed([[1, 2, 3]])
        assert value(shown(state_with(encoder)), 'stretto_threads{model="m"}') == 1
