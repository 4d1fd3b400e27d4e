"""`/metrics` of a model with recurrent layers."""

from types import SimpleNamespace

from recurrent_mock import recurrent_llm
from stretto.server.metrics import render
from stretto.testing import mock_llm


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
