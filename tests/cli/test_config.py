"""`stretto config`: shows, sets and unsets what commands go by."""

import json
import re

import pytest

from stretto.cli import config_file
from stretto.cli.first_run import default_model
from stretto.cli.options import model_names


def test_settings_are_set_shown_and_unset(stretto):
    code, out, _ = stretto("config", "set", "sampling.temperature", "0.2")
    assert (code, out) == (0, f"sampling.temperature = 0.2 in {config_file.path()}\n")
    assert stretto("config", "set", "presence_penalty", "-1")[0] == 0
    code, out, _ = stretto("config")
    assert code == 0
    rows = {line.split()[0]: line.split() for line in out.splitlines() if len(line.split()) > 1}
    assert rows["sampling.temperature"] == ["sampling.temperature", "0.2", "line", "2"]
    assert rows["sampling.top_k"][1:4] == ["40", "the", "default,"]
    assert stretto("config", "unset", "sampling.temperature")[0] == 0
    assert config_file.read().sampling == {"presence_penalty": -1}
    assert stretto("config", "path")[1] == f"{config_file.path()}\n"


def test_where_the_default_model_comes_from(stretto, monkeypatch, store_home):
    assert "the environment: STRETTO_MODEL" in stretto("config")[1]
    monkeypatch.delenv("STRETTO_MODEL")
    assert "not chosen yet" in stretto("config")[1]
    store_home.mkdir()
    (store_home / "default-model.json").write_text('{"model": "smollm2"}')
    assert re.search(r"model +smollm2 +the first start", stretto("config")[1])


def test_json_shows_values_that_json_does_not_have(stretto):
    config_file.path().write_text("when = [1979-05-27, {at = 07:32:00}]\n")
    code, out, _ = stretto("config", "--json")
    assert code == 2
    assert json.loads(out)["settings"][0]["value"] == ["1979-05-27", {"at": "07:32:00"}]


def test_json(stretto):
    config_file.set_value("alias.fast", "smollm2")
    code, out, _ = stretto("config", "--json")
    assert code == 0
    assert json.loads(out) == {
        "path": str(config_file.path()),
        "settings": [{"key": "alias.fast", "value": "smollm2", "line": 2, "problem": None}],
    }


def test_a_model_that_does_not_exist_is_not_set(stretto):
    for key in ("model", "alias.fast"):
        code, _, err = stretto("config", "set", key, "smolm2")
        assert code == 2
        assert "there is no model 'smolm2'" in err
    assert stretto("config", "set", "alias.fast", "qwen3-0.6b")[0] == 0
    assert stretto("config", "set", "model", "fast")[0] == 0
    assert model_names("fa") == ["fast"]


def test_an_alias_hides_no_model(stretto):
    code, _, err = stretto("config", "set", "alias.smollm2", "qwen3-0.6b")
    assert (code, err) == (2, "error: smollm2 is the name of a model; choose another for the alias\n")


@pytest.mark.parametrize("text", ["modell = 'x'\n", "model = \n"])
def test_a_broken_file_stops_neither_help_nor_repair(stretto, text):
    config_file.path().write_text(text)
    assert stretto("--help")[0] == stretto("run", "--help")[0] == 0
    assert model_names("smollm2")
    assert stretto("config", "path")[0] == 0
    code, _, err = stretto("config")
    assert code == 2
    assert f"error: {config_file.path()}" in err
    assert stretto("config", "unset", text.split()[0])[0] == 0
    assert stretto("config")[0] == 0


def test_the_default_model_is_the_one_that_is_set(monkeypatch):
    monkeypatch.delenv("STRETTO_MODEL")
    config_file.set_value("alias.fast", "smollm2")
    config_file.set_value("model", "fast")
    assert default_model() == "smollm2"
    monkeypatch.setenv("STRETTO_MODEL", "qwen3-0.6b")
    assert default_model() == "qwen3-0.6b"
