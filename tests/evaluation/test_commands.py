"""`stretto perplexity` and `stretto eval`, on a scripted model."""

import json
import sys

import pytest

import stretto
from stretto.cli import main
from stretto.testing import mock_llm


@pytest.fixture
def cli(capsys, monkeypatch):
    """Runs a command: its exit code, output and errors."""

    def call(*arguments):
        monkeypatch.setattr(stretto, "load", lambda model, **options: mock_llm("abc"))
        monkeypatch.setattr(sys, "stdin", None)
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abc is a text that is long enough. " * 4)
    return path


def test_perplexity_is_printed_as_json_and_plotted(cli, text, tmp_path):
    plot = tmp_path / "plot.svg"
    code, out, _ = cli("perplexity", "mock.gguf", text, "--window", 16, "--json", "--plot", plot)
    found = json.loads(out)
    assert code == 0
    assert found["n_scored"] == 7 * len(found["windows"])
    assert found["perplexity"]["low"] <= found["perplexity"]["value"] <= found["perplexity"]["high"]
    assert plot.read_text().startswith("<svg")


def test_perplexity_is_compared_with_a_reference(cli, text):
    code, out, _ = cli(
        "perplexity", "mock.gguf", text, "--window", 16, "--stride", 8, "--reference", "reference"
    )
    assert code == 0
    assert "KL mean          0.000000" in out
    assert "same top token   1.000000" in out


def test_a_text_that_is_not_text_is_refused(cli, tmp_path):
    path = tmp_path / "noise"
    path.write_bytes(b"\xff\xfe\x00")
    code, _, errors = cli("perplexity", "mock.gguf", path)
    assert (code, "is not UTF-8" in errors) == (2, True)
    assert cli("perplexity", "mock.gguf", tmp_path / "missing")[0] == 2


def test_questions_are_answered(cli, tmp_path):
    task = tmp_path / "task.jsonl"
    task.write_text('{"context": "x", "choices": ["abc", "zzz"], "answer": 0}\n')
    code, out, _ = cli("eval", "mock.gguf", task, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["accuracy"]["value"], found["picked"]) == (1.0, [0])
    assert "normalised accuracy  1.0000" in cli("eval", "mock.gguf", task)[1]


def test_one_file_has_the_answers_of_one_benchmark(cli, tmp_path):
    code, _, errors = cli("eval", "mock.gguf", "arc", "--answers", tmp_path / "answers.jsonl")
    assert (code, "arc_easy and arc_challenge" in errors) == (2, True)
    assert list(tmp_path.iterdir()) == []
