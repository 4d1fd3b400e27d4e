"""What the catalogues know of a model, asked before a pull: its verbs, packages it needs, its defaults."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.cli.chatting import keyboard
from stretto.cli.generation import add_defaults
from stretto.errors import PullError, Unsupported
from stretto.tasks.model import load_task
from stretto.testing import mock_llm
from stretto.weights import hub
from stretto.weights.hub.catalogue import CATALOGUE, ModelDefaults

SYSTEM = "You are a helpful assistant. Answer in one short sentence."


@pytest.fixture(autouse=True)
def nothing_is_fetched(monkeypatch):
    monkeypatch.setattr(hub, "pull", lambda *args, **options: pytest.fail("a model was fetched"))


@pytest.fixture
def without_onnx(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name.startswith("onnx") else find(name)
    )


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("chat", "-m", "minilm"), "minilm cannot chat; it can embed and rerank (stretto embed -m minilm"),
        (("chat", "-m", "gemma3-270m"), "gemma3-270m cannot chat"),
        (("run", "-m", "u2net", "Hello"), "u2net cannot generate; it can segment (stretto segment -m u2net)"),
        (("run", "-m", "u2net", "Hello"), "; a model that can: qwen2.5-coder-1.5b"),
        (("run", "embeddinggemma-300m", "Hello"), "embeddinggemma-300m cannot generate; it can embed"),
        (("score", "-m", "minilm", "Hello"), "minilm cannot score"),
        (("embed", "-m", "u2net", "Hello"), "u2net cannot embed"),
        (("rerank", "-m", "smollm2", "Hello", "there"), "smollm2 cannot rerank"),
        (("classify", "-m", "smollm2", "x.png"), "a model that can: efficientnet-lite0"),
        (("segment", "-m", "smollm2", "x.png"), "a model that can: u2net"),
        (("bench", "-m", "minilm"), "minilm cannot generate"),
    ],
)
def test_a_command_says_before_the_pull_what_a_model_cannot_do(cli, command, sentence):
    code, out, errors = cli(*command)
    assert (code, out) == (2, "")
    assert sentence in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("name", ["efficientnet-lite0", "u2net", "moonshine"])
def test_a_missing_extra_is_named_before_the_pull(stretto, without_onnx, name):
    (verb,) = hub.packaged_models()[name].verbs
    code, _, errors = stretto(verb, "-m", name, "x")
    assert code == 2
    assert f"{name} needs onnx and onnxruntime: pip install 'stretto[onnx]'" in errors
    with pytest.raises(Unsupported, match="pip install"):
        load_task(name)


@pytest.mark.parametrize(
    "command",
    [
        ("classify", "no.png"),
        ("detect", "no.png", "none.png"),
        ("read", "no.png"),
        ("segment", "no.png"),
        ("transcribe", "no.wav"),
    ],
)
def test_a_missing_file_is_named_before_the_pull(cli, command):
    code, out, errors = cli(*command)
    assert (code, out) == (2, "")
    assert errors == f"error: {', '.join(command[1:])}: no such file\n"


def test_a_model_without_a_name_is_refused(cli):
    for command in (("run", "-m", "", "Hello"), ("chat", "-m", ""), ("score", "-m", "", "Hello")):
        assert "the name of the model is empty" in cli(*command)[2]


def test_numbers_are_checked_before_the_pull(cli):
    for flags in (("-n", "-1"), ("--temperature", "-1"), ("--seed", "-1"), ("--top-p", "7")):
        for command in ("run", "chat"):
            code, _, errors = cli(command, "-m", "qwen2.5-coder-0.5b", *flags, stdin=b"Hello")
            assert (code, len(errors.splitlines())) == (2, 1)
    assert cli.loaded == []


def test_what_needs_no_extra_is_not_refused(without_onnx):
    for name in ("minilm", "wordllama"):
        hub.require(name, "embed")
    hub.require("hf:org/repo", "chat")  # no catalogue knows it
    hub.require("./mine.gguf", "chat")


def test_a_chat_does_not_switch_to_a_model_that_cannot_chat(cli, monkeypatch):
    monkeypatch.setattr(sys.modules["stretto.cli.pull"], "pull", lambda model: None)
    code, _, errors = cli("chat", stdin=b"/model u2net\nHello\n")
    assert code == 2
    assert "u2net cannot chat" in errors
    assert len(cli.loaded) == 1


def test_a_chat_completes_models_that_can_chat():
    names = {name for _, name in keyboard.models("")}
    assert {"smollm2", "qwen2.5-coder-1.5b"} <= names
    assert not {"minilm", "u2net", "gemma3-270m"} & names


def test_every_entry_has_verbs_and_known_extras():
    for entry in (*hub.packaged_models().values(), *CATALOGUE.values()):
        assert entry.verbs, entry.name
        assert entry.extra in ("", *hub.EXTRAS), entry.name
    assert CATALOGUE["embeddinggemma-300m"].verbs == ("embed", "rerank")
    assert "chat" in CATALOGUE["qwen3-0.6b"].verbs


def test_a_default_model_that_cannot_be_had_comes_with_a_smaller_one(cli, monkeypatch):
    def fail(name, **options):
        raise PullError("the package index does not have it")

    monkeypatch.setattr(hub, "pull", fail)
    code, _, errors = cli("run", "-m", "qwen2.5-coder-1.5b", "Hello")
    assert code == 2
    assert "the package index does not have it. A smaller model: -m smollm2" in errors
    assert "A smaller model" not in cli("run", "-m", "smollm2", "Hello")[2]


# -- defaults --


def stored(home, name, file="model.gguf", **record):
    """A model in the store."""
    folder = home / "models" / name.replace(":", "~").replace("/", "~")
    folder.mkdir(parents=True)
    (folder / file).write_bytes(b"weights")
    facts = {"name": name, "file": file, "source": "x", "nbytes": 7, "sha256": "", "verified": True}
    terms = {"license": "", "license_url": "", "notices": []}
    (folder / "model.json").write_text(json.dumps({**facts, **terms, **record}))
    return folder / file


def test_defaults_by_name_by_path_and_by_content(store_home, tmp_path, monkeypatch):
    assert hub.defaults("smollm2").system == SYSTEM
    assert hub.defaults("qwen2.5-coder-1.5b").sampling == {"temperature": 0.3}
    path = stored(store_home, "smollm2")
    assert hub.defaults(str(path)).system == hub.defaults(path).system == SYSTEM
    assert hub.defaults(path.parent).system == SYSTEM
    monkeypatch.chdir(path.parent)
    assert hub.defaults("./model.gguf").system == SYSTEM
    same = "hf:org/repo/smol.gguf"
    stored(store_home, same, "smol.gguf", sha256=hub.packaged_models()["smollm2"].sha256)
    assert hub.defaults(same).system == SYSTEM
    for other in (
        "hf:org/repo",
        "nosuch",
        "/",
        "\0",
        "~nobody/x",
        str(tmp_path / "mine.gguf"),
        Path("smollm2"),
    ):
        assert hub.defaults(other) == ModelDefaults()


def test_options_come_before_the_configuration_and_that_before_the_catalogue(monkeypatch, tmp_path):
    monkeypatch.setenv("STRETTO_CONFIG", str(tmp_path / "config.toml"))
    entry = hub.packaged_models()["smollm2"]
    entry = replace(entry, defaults=ModelDefaults(SYSTEM, {"temperature": 0.1, "top_k": 7, "min_p": 0.2}))
    monkeypatch.setattr(hub, "packaged_models", lambda: {"smollm2": entry})
    assert add_defaults("smollm2", None, {}, tells=False)[0] == SYSTEM
    (tmp_path / "config.toml").write_text('system = "Be kind."\n[sampling]\ntemperature = 0.5\ntop_k = 9\n')
    system, settings = add_defaults("smollm2", None, {"temperature": 0.9}, tells=False)
    assert (system, settings) == ("Be kind.", {"temperature": 0.9, "top_k": 9, "min_p": 0.2})
    assert add_defaults("smollm2", "", {}, tells=False)[0] is None
    assert add_defaults("smollm2", "Hi", {}, tells=False)[0] == "Hi"


@pytest.fixture
def asked(cli, monkeypatch):
    """The messages that a command asks a model with."""
    monkeypatch.setattr(sys.modules["stretto.cli.pull"], "pull_missing", lambda model, verb=None: None)

    def ask(*arguments, **options):
        llm = mock_llm("Hello there")
        seen, prompt = [], llm.chat_prompt
        llm.chat_prompt = lambda messages, **more: (seen.append(messages), prompt(messages, **more))[1]
        code, _, errors = cli(*arguments, llm=llm, **options)
        assert code == 0, errors
        return [(one["role"], one["content"]) for one in seen[-1]]

    return ask


def test_run_and_chat_give_the_small_model_its_message_and_it_can_be_left_out(asked):
    user = ("user", "Hi")
    assert asked("run", "-m", "smollm2", "Hi") == [("system", SYSTEM), user]
    assert asked("run", "-m", "smollm2", "--system", "", "Hi") == [user]
    assert asked("run", "-m", "smollm2", "--system", "Be kind.", "Hi") == [("system", "Be kind."), user]
    assert asked("run", "-m", "qwen2.5-coder-1.5b", "Hi") == [user]
    assert asked("chat", "-m", "smollm2", stdin=b"Hi\n")[0] == ("system", SYSTEM)
    assert asked("chat", "-m", "smollm2", "--system", "", stdin=b"Hi\n")[0] == user
