"""Errors carry data: the parameter that is wrong and its value, not only a message that names them."""

import copy
import pickle

import pytest

import stretto
from stretto.backends.registry import BackendEntry
from stretto.cache.cells import Cells
from stretto.errors import (
    CacheFull,
    ContextOverflow,
    InvalidGrammar,
    InvalidRequest,
    StrettoError,
    Unsupported,
)
from stretto.sampling.params import check_integer
from stretto.server.http.errors import translate
from stretto.testing import mock_llm
from tiny_models import FOLDER


@pytest.mark.parametrize(
    ("options", "param", "value"),
    [
        ({"temperature": -1}, "temperature", -1),
        ({"top_k": 2.5}, "top_k", 2.5),
        ({"top_p": 0}, "top_p", 0),
        ({"logit_bias": 3}, "logit_bias", 3),
        ({"logit_bias": {999_999: 1.0}}, "logit_bias", 999_999),
        ({"stop_tokens": [-4]}, "stop_tokens", -4),
        ({"stop": [5]}, "stop", 5),
        ({"loop": "round"}, "loop", "round"),
        ({"overflow": "burst"}, "overflow", "burst"),
        ({"keep": 3}, "keep", 3),
        ({"max_token": 3}, "max_token", 3),
        ({"hooks": [1]}, "hooks", 1),
        ({"draft": "crystal ball"}, "draft", "crystal ball"),
        ({"grammar": 7}, "grammar", 7),
        ({"grammar": {"type": "object", "$ref": "http://elsewhere/x"}}, "schema", "http://elsewhere/x"),
    ],
    ids=str,
)
def test_a_wrong_option_is_a_field_of_the_error(options, param, value):
    llm = mock_llm("Hello")
    with pytest.raises(InvalidRequest) as refused:
        llm.generate("a", **options)
    assert (refused.value.param, refused.value.value) == (param, value)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"combine": "blend"}, "combine"),
        ({"mode": "apart"}, "mode"),
        ({"mode": [[False]], "max_width": 1}, "mode"),
        ({"max_width": 0}, "max_width"),
        ({"seed": 1}, "seed"),
        ({"treshold": 0.5}, "treshold"),
    ],
    ids=str,
)
def test_so_is_an_option_of_a_parallel_run(options, param):
    with pytest.raises(InvalidRequest) as refused:
        mock_llm("Hello").parallel("a", **options)
    assert refused.value.param == param


def test_a_message_names_the_place_in_a_conversation():
    llm = mock_llm("Hello")
    with pytest.raises(InvalidRequest) as refused:
        llm.chat([{"role": "user", "content": "Hi"}, {"role": "us er", "content": "Hi"}])
    assert (refused.value.param, refused.value.value) == ("messages[1].role", "us er")


def test_numbers_of_the_cache():
    with pytest.raises(CacheFull) as full:
        Cells(4).place([1] * 5, range(5), [[0]] * 5)
    assert (full.value.n_needed, full.value.n_free) == (5, 4)


def test_errors_survive_copies_and_processes():
    for error in (
        InvalidRequest("n must be 1", param="n", value=2),
        ContextOverflow("too long", n_tokens=9, limit=8),
        InvalidGrammar("no text fits", param="grammar"),
    ):
        for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert type(twin) is type(error)
            assert (str(twin), vars(twin)) == (str(error), vars(error))


def test_every_error_is_public():
    def kinds(base):
        return {base.__name__}.union(*map(kinds, base.__subclasses__()))

    ours = {name for name in kinds(StrettoError) if getattr(stretto.errors, name, None) is not None}
    assert ours <= set(stretto.__all__)


def test_the_server_calls_a_parameter_by_the_name_of_its_field():
    long = ContextOverflow("the prompt has 9 tokens and the context 8", n_tokens=9, limit=8)
    assert (translate(long, "messages").param, translate(long).param) == ("messages", "prompt")
    assert translate(InvalidRequest("text has …", param="text"), "input").param == "input"
    wrong = InvalidGrammar("the JSON schema is false", param="schema")
    assert (translate(wrong, "messages", "format").param, translate(wrong).code) == (
        "format",
        "invalid_grammar",
    )
    with pytest.raises(InvalidRequest) as refused:
        check_integer("a token of stop_tokens", 5, 0, 4, param="stop_tokens")
    assert translate(refused.value).param == "stop_tokens"
    assert translate(InvalidRequest("the model is closed")).param is None


@pytest.mark.parametrize("model", [None, 5, b"smollm2", "", ["smollm2"]], ids=repr)
def test_what_is_no_model_is_refused_as_such(model):
    with pytest.raises(InvalidRequest, match=r"^model .*a name or a path") as refused:
        stretto.load(model)
    assert (refused.value.param, refused.value.value) == ("model", model)


def test_wrong_limits_are_refused_with_the_right_ones():
    with pytest.raises(InvalidRequest, match=r"limits must be a stretto\.Limits") as refused:
        stretto.load("smollm2", limits={"max_running": 3})
    assert (refused.value.param, refused.value.value) == ("limits", {"max_running": 3})
    with pytest.raises(InvalidRequest, match="did you mean 'max_running'") as refused:
        stretto.Limits(max_runing=3)
    assert (refused.value.param, refused.value.value) == ("max_runing", 3)
    with pytest.raises(InvalidRequest, match="there are max_running, max_queue"):
        stretto.Limits(zzz=1)
    assert stretto.Limits(3, max_queue=2) == stretto.Limits(max_running=3, max_queue=2)


@pytest.mark.parametrize(
    ("prompt", "hint"),
    [
        (None, "not None"),
        (5, "not 5"),
        (b"hello", "decode bytes"),
        ({"role": "user"}, "llm.chat takes"),
        ([{"role": "user", "content": "Hi"}], "llm.chat takes"),
        (["a", 5], "not 5"),
    ],
    ids=repr,
)
def test_a_wrong_prompt_is_named_as_such(prompt, hint):
    with pytest.raises(InvalidRequest, match=hint) as refused:
        mock_llm("Hello").generate(prompt)
    assert refused.value.param == "prompt"
    assert refused.value.value is not None or prompt is None
    assert str(refused.value).startswith("prompt must be a text, a list of token ids")


def test_calls_of_one_prompt_or_of_several_say_so():
    llm = mock_llm("Hello")
    with pytest.raises(InvalidRequest, match=r"a list of prompts is for llm\.generate") as refused:
        llm.stream(["a", "b"])
    assert refused.value.param == "prompt"
    with pytest.raises(InvalidRequest, match=r"for one prompt, give \[prompt\]") as refused:
        llm.prompt_logprobs("text")
    assert (refused.value.param, refused.value.value) == ("prompts", "text")
    with pytest.raises(InvalidRequest, match="token -1 is not in the vocabulary") as refused:
        llm.generate([-1])
    assert (refused.value.param, refused.value.value) == ("prompt", -1)


def test_a_device_that_is_not_here_is_named(monkeypatch):
    reason = {"cuda": "no CUDA device is visible here"}
    monkeypatch.setattr(BackendEntry, "missing", lambda self, device: reason.get(device, ""))
    with pytest.raises(Unsupported, match="native on cpu can: leave backend and device out") as refused:
        stretto.load(FOLDER / "llama.gguf", device="cuda", cells=64)
    assert (refused.value.param, refused.value.value) == ("device", "cuda")


def test_errors_list_what_there_is():
    llm = mock_llm("Hello")
    with pytest.raises(InvalidRequest, match=r"no adapter 'pirate' is loaded; llm\.load_adapter loads one"):
        llm.generate("a", adapter="pirate")
    with pytest.raises(InvalidGrammar, match=r"Grammar\.json, \.regex, \.choices, \.lark and \.gbnf"):
        llm.generate("a", grammar="json")
