"""`/metrics` of a model with recurrent layers, and of one that makes vectors."""

from types import SimpleNamespace

from recurrent_mock import recurrent_llm
from stretto.llm.encoder import Encoder
from stretto.server.metrics import render
from stretto.testing import byte_tokenizer, mock_llm
from tiny_encoders import native


def state_with(llm):
    model = SimpleNamespace(name="m", llm=llm, loads=1, done={}, seconds={})
    registry = SimpleNamespace(slots={"m": model}, loaded_bytes=0, limit=0)
    return SimpleNamespace(registry=registry, traffic=SimpleNamespace(answered={}, active=0), labels={})


def test_slots_are_shown_where_there_are_any():
    with recurrent_llm() as llm, llm.sequence("abc") as seq:
        seq.logits  # noqa: B018
        text = render(state_with(llm))
    assert 'stretto_slots{model="m"} 32' in text
    assert 'stretto_slots_used{model="m"} 1' in text
    assert 'stretto_slot_bytes{model="m"} 16' in text
    assert "stretto_slots" not in render(state_with(mock_llm("abc")))


def test_texts_of_encoders_are_counted_by_llama_servers_names():
    with Encoder(native("bert", 1), byte_tokenizer()) as encoder:
        encoder.embed([[1, 2, 3], [4, 5]])
        text = render(state_with(encoder))
    assert "llamacpp:prompt_tokens_total 5" in text
    assert "llamacpp:n_decode_total 1" in text
    assert "llamacpp:tokens_predicted_total 0" in text
