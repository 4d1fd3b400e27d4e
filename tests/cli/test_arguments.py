"""One order of arguments: the model by --model or first, texts last; aliases wherever a model is."""

import json

import pytest

from stretto.cli import config_file
from stretto.cli.options import resolve_served
from stretto.cli.prompts import model_and_files
from stretto.errors import InvalidRequest
from stretto.testing import mock_llm


def test_a_model_may_be_first_or_an_option():
    assert model_and_files(["m", "text"], None, "perplexity [MODEL] TEXT") == ("m", ["text"])
    assert model_and_files(["text", None], "m", "perplexity [MODEL] TEXT") == ("m", ["text"])
    assert model_and_files(["text", None], None, "perplexity [MODEL] TEXT") == ("smollm2", ["text"])
    assert model_and_files(["m"], "m", "chat [MODEL]") == ("m", [])
    assert model_and_files(["m", "a", "o"], None, "merge MODEL ADAPTER OUT", has_default=False)[0] == "m"


@pytest.mark.parametrize(
    ("words", "model", "usage", "message"),
    [
        ([], None, "perplexity [MODEL] TEXT", "TEXT is missing: stretto perplexity [MODEL] TEXT; --help"),
        (["a", "b"], "m", "perplexity [MODEL] TEXT", "one model, not a and m"),
        (["a"], None, "export onnx MODEL FOLDER", "MODEL is missing"),
        ([], "m", "export onnx MODEL FOLDER", "FOLDER is missing"),
    ],
)
def test_what_is_missing_is_named(words, model, usage, message):
    with pytest.raises(InvalidRequest) as error:
        model_and_files(words, model, usage, has_default="[MODEL]" in usage)
    assert message in str(error.value)


@pytest.mark.parametrize("command", ["export", "deploy"])
def test_a_command_that_needs_another_names_it(stretto, command):
    code, out, err = stretto(command)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert f"a command is missing: stretto {command} " in err
    assert f"(stretto {command} --help shows more)" in err


@pytest.mark.parametrize(
    "arguments", [("hello",), ("-m", "smollm2", "hello"), ("smollm2", "hello"), ("fast", "hello")]
)
def test_tokenize_takes_a_text_alone(stretto, store_home, smollm2_path, arguments):
    store_home.mkdir()
    (store_home / "models").symlink_to(smollm2_path.parents[1])
    config_file.set_value("alias.fast", "smollm2")
    code, out, _ = stretto("tokenize", *arguments, "--json")
    assert code == 0
    assert json.loads(out)["pieces"] == ["hello"]


@pytest.mark.parametrize("command", ["score", "parallel", "run"])
def test_one_text_alone_goes_to_the_default_model(cli, command, monkeypatch):
    monkeypatch.setenv("STRETTO_MODEL", "default.gguf")
    limit = () if command == "score" else ("-n", "2")
    for words, model in ((("Hi there",), "default.gguf"), (("other.gguf", "Hi there"), "other.gguf")):
        code, _, _ = cli(command, *words, *limit)
        assert code == 0
        assert cli.loaded[0][0] == model


def test_aliases_and_threads_of_the_configuration(cli):
    config_file.set_value("alias.fast", "fast.gguf")
    config_file.set_value("threads", "3")
    for words in (("run", "fast", "Hi"), ("run", "-m", "fast", "Hi"), ("score", "fast", "Hi")):
        assert cli(*words)[0] == 0
        model, options = cli.loaded[0]
        assert (model, options["threads"]) == ("fast.gguf", 3)
    assert cli("run", "fast", "Hi", "--threads", "2")[0] == 0
    assert cli.loaded[0][1]["threads"] == 2


def test_the_limit_and_the_sampling_of_the_configuration(cli):
    for key, value in (("max_tokens", "3"), ("temperature", "0.25"), ("system", "Be brief.")):
        config_file.set_value(key, value)

    def asked(*options):
        llm = mock_llm("Hello there")
        seen, stream = [], llm.stream
        llm.stream = lambda prompt, **given: seen.append((prompt, given)) or stream(prompt, **given)
        assert cli("run", "mock.gguf", "Hi", *options, llm=llm)[0] == 0
        ((prompt, given),) = seen
        text = bytes(token for token in prompt if token < 256).decode()
        return given.get("max_tokens"), given["temperature"], "Be brief." in text

    assert asked() == (3, 0.25, True)
    assert asked("-n", "2", "--temperature", "0", "--system", "") == (2, 0, False)
    assert asked("-n", "0") == (None, 0.25, True)


def test_an_alias_is_served_under_its_name():
    config_file.set_value("alias.fast", "smollm2")
    assert resolve_served("fast") == "fast=smollm2"
    assert resolve_served("mine=fast") == "mine=smollm2"
    assert resolve_served("smollm2") == "smollm2"


def test_a_wrong_configuration_stops_a_command_before_it_begins(cli):
    config_file.path().write_text("thread = 3\n")
    code, out, err = cli("run", "mock.gguf", "Hi")
    assert (code, out) == (2, "")
    assert err.startswith(
        f"error: {config_file.path()}, line 1: there is no setting 'thread'; did you mean threads?"
    )
    assert cli.loaded == []


def test_bench_takes_a_model_as_its_first_argument(cli):
    code, _, err = cli("bench", "missing-model", "--rounds", "1", llm=mock_llm("abc"))
    assert code == 2
    assert "there is no model 'missing-model'" in err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("config", "--json", "path"), "--json"),
        (("logs", "--json", "show"), "--json"),
        (("logs", "-n", "3", "clear"), "--number"),
        (("bench", "-m", "smollm2", "loops"), "--model"),
    ],
)
def test_an_option_before_a_command_that_does_not_get_it_is_refused(stretto, arguments, option):
    code, out, err = stretto(*arguments)
    assert (code, out) == (2, "")
    assert f"{option} stands before {arguments[-1]}" in err
