"""`stretto parallel`: what it prints."""

import inspect
import json
import re
import sys
from dataclasses import fields

import numpy as np

from stretto.cli.parallel import parallel
from stretto.parallel import ParallelParams
from stretto.testing import END, byte_tokenizer, mock_llm

END_ID = byte_tokenizer().specials[END]


def model():
    def script(seen):
        row = np.full(258, -1e9, np.float32)
        if seen[-1] == ord("x"):
            row[[ord("a"), ord("b")]] = np.log([0.6, 0.4])
        elif seen[-1] in b"ab":
            row[ord("\x1b")] = 0
        else:
            row[END_ID] = 0
        return row

    return mock_llm(script)


def ask(cli, *arguments):
    return cli("parallel", "--model", "mock.gguf", *arguments, llm=model())


def test_brackets_on_stdout_and_nothing_else(cli):
    assert ask(cli, "x") == (0, "[a/b]\\x1b\n", "")
    assert ask(cli, "x", "--threshold", 0.5) == (0, "a\\x1b\n", "")
    assert ask(cli, "x", "--show-probs", "-n", 1) == (0, "[a 0.60/b 0.40]\n", "")


def test_the_defaults_are_those_of_a_run():
    given = {name: one.default for name, one in inspect.signature(parallel).parameters.items()}
    own = fields(ParallelParams)
    assert {one.name: given[one.name] for one in own if one.name in given} == {
        one.name: one.default for one in own if one.name != "attention"
    }


def test_colours_in_a_terminal(cli, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    output = ask(cli, "x", "-n", 1)[1]
    assert "\x1b[1;32ma\x1b[0m" in output  # the best one, and not dimmed as the brackets are
    assert "\x1b[33mb\x1b[0m" in output
    assert re.sub(r"\x1b\[[\d;]*m", "", output) == "[a/b]\n"
    assert not sys.stdout.isatty()


def test_statistics(cli):
    code, output, errors = ask(cli, "x", "--stats")
    assert (code, output) == (0, "[a/b]\\x1b\n")
    assert re.fullmatch(
        r"2 steps, mean width 1\.50, 50% of the steps parallel, 0 cells saved by pruning, [\d.]+ tok/s\n",
        errors,
    )


def test_json(cli):
    code, output, errors = ask(cli, "x", "--json", "--mode", "visible")
    data = json.loads(output)
    assert (code, errors) == (0, "")
    assert data["text"] == "a\x1b"
    assert data["statistics"]["mean_width"] == 1.5
    assert data["model"] == "mock.gguf"
    assert [member["text"] for member in data["steps"][0]["members"]] == ["a", "b"]


def test_stop_strings(cli):
    assert ask(cli, "x", "--stop", "\x1b") == (0, "[a/b]\n", "")
    assert ask(cli, "x", "--stop", "a\x1b") == (0, "", "")
    data = json.loads(ask(cli, "x", "--stop", "a", "--json")[1])
    assert (data["text"], data["brackets"], data["stop_reason"]) == ("", "", "a")
    assert data["steps"][0]["text"] == ""
    assert len(data["steps"][0]["members"]) == 2


def test_refusals(cli):
    code, output, errors = ask(cli, "x", "--threshold", 0)
    assert (code, output) == (2, "")
    assert errors.startswith("error: threshold must be")
    assert ask(cli, "x", "--mode", "blind")[0] == 2
