"""What a terminal shows of models, specs, sequences and results: little enough to read."""

from dataclasses import replace
from pathlib import Path

import pytest

import stretto
from stretto.errors import InvalidRequest
from stretto.models import read_spec
from stretto.models.parts import Norm, short_repr
from stretto.testing import mock_llm
from stretto.weights.gguf import GGUF

SCREEN = 24 * 80
TINY = Path(__file__).parents[1] / "data" / "tiny"


def test_the_spec_of_every_tiny_model_fits_a_screen():
    files = sorted(TINY.glob("*.gguf"))
    sizes = {}
    for path in files:
        try:
            sizes[path.name] = len(repr(read_spec(GGUF(path))))
        except stretto.ModelError:  # no language model
            continue
    assert len(sizes) > 5
    assert {name: size for name, size in sizes.items() if size > SCREEN} == {}


def test_a_spec_shows_equal_layers_once_and_no_defaults(smollm2_path):
    shown = repr(read_spec(GGUF(smollm2_path)))
    assert shown.startswith("ModelSpec(architecture='llama', n_vocab=49152, n_embd=576, context_length=8192")
    assert shown.count("30 × Layer(") == shown.count("Layer(") == 1
    assert "post_norm" not in shown
    assert len(shown) < 1000


def test_kinds_of_layers_that_are_too_many_are_counted():
    spec = mock_llm("Hi").spec
    layers = tuple(replace(spec.layers[0], residual_scale=float(i)) for i in range(2, 9))
    assert "5 of 5 other kinds" in repr(replace(spec, layers=layers))


def test_a_part_is_shown_without_its_defaults():
    assert short_repr(Norm("attn_norm", 1e-5)) == "Norm(name='attn_norm')"


def test_a_result_shows_its_text_and_not_its_tokens():
    result = mock_llm("word " * 200).generate("Say it", max_tokens=900)
    assert result.text in repr(result)
    assert len(repr(result)) < len(result.text) + 400


def test_a_parallel_run_shows_its_text():
    run = mock_llm("Hello world").parallel("Say it", max_tokens=5)
    assert repr(run) == f"<ParallelText {run.brackets!r}: 5 steps, length>"


def test_a_stream_shows_its_state_and_text():
    llm = mock_llm("word " * 50)
    stream = llm.stream("Say it")
    assert repr(stream) == "<TextStream, running: ''>"
    text = stream.result.text
    assert repr(stream) == f"<TextStream, ended: {'…' + text[-57:]!r}>"
    assert repr(llm.astream("Say it")) == "<AsyncStream, not started>"


def test_a_stream_is_closed_as_a_generator_is():
    stream = mock_llm("word " * 50).stream("Say it")
    next(stream)
    stream.close()
    assert stream.result.finish_reason == "cancelled"


def test_a_closed_model_shows_it():
    llm = mock_llm("Hello")
    assert "closed" not in repr(llm)
    llm.close()
    assert repr(llm).endswith(", closed>")


def test_a_model_that_is_called_names_its_methods():
    with pytest.raises(InvalidRequest, match="a model is no function; call one of its methods: generate"):
        mock_llm("Hello")("Say it")


@pytest.mark.parametrize("hidden", ["prepare", "track_in", "check_open", "check_usable", "step_with", "draw"])
def test_tab_completion_of_a_sequence_has_no_internals(hidden):
    assert hidden not in dir(mock_llm("Hi").sequence("abc"))


def test_tab_completion_of_a_sequence_shows_what_users_use():
    names = {name for name in dir(mock_llm("Hi").sequence("abc")) if not name.startswith("_")}
    reading = {"id", "tokens", "text", "positions", "position", "closed", "adapter", "history", "random"}
    numbers = {"n_pending", "n_prompt", "n_cached", "edit_mode"}
    moving = {"logits", "sample", "step", "append", "fork", "truncate", "remove", "shift", "clear"}
    editing = {"replace", "insert"}
    assert names == reading | numbers | moving | editing | {"save", "close"}
