"""`stretto run`: what it prints, where it takes the prompt from, what it refuses."""

import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import stretto
from stretto.cli import main
from stretto.cli.chat import chat
from stretto.cli.generation import Answer, printable
from stretto.cli.run import run
from stretto.errors import Unsupported
from stretto.sampling import SamplingParams
from stretto.testing import mock_llm

SAMPLING = {
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
}
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def ask(cli):
    """`stretto run` with a model that is a path, so that nothing is looked up or fetched."""

    def call(*arguments, **options):
        return cli("run", "--model", "mock.gguf", *arguments, **options)

    call.loaded = lambda: cli.loaded
    return call


@pytest.fixture
def ask_real(capsys, monkeypatch):
    """`stretto run MODEL PROMPT …` with nothing on stdin."""

    def call(*arguments):
        monkeypatch.setattr(sys, "stdin", None)
        with pytest.raises(SystemExit) as ended:
            main(["run", *map(str, arguments)])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


def refused(result):
    code, output, errors = result
    assert (code, output) == (2, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    return errors.strip()


def recording():
    """A model that says "ok", and the prompt it was asked."""
    llm = mock_llm("ok")
    return llm, lambda: llm.tokenizer.decode(llm.backend.batches[0], special=True)


def without_template():
    """The same, as a base model."""
    llm, prompt = recording()
    llm.template = None
    return llm, prompt


# -- output --


def test_text_on_stdout_and_nothing_else(ask):
    assert ask("Say hello") == (0, "Hello there\n", "")


def test_text_that_ends_its_line_gets_no_second_line_break(ask):
    assert ask("Say", llm=mock_llm("two\nlines\n")) == (0, "two\nlines\n", "")


def test_statistics_when_asked_for(ask):
    code, output, errors = ask("Say hello", "--stats")
    assert (code, output) == (0, "Hello there\n")
    assert re.fullmatch(r"11 tokens, [\d.]+ tok/s, first token after [\d.]+ s\n", errors)
    assert ask("Say hello", "--no-stats")[2] == ""


def test_text_comes_token_by_token(ask, monkeypatch, capsys):
    seen = []

    class Terminal(io.StringIO):
        def flush(self):
            seen.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Terminal())
    ask("Say", llm=mock_llm("abc"))
    assert seen[:3] == ["a", "ab", "abc"]


def test_json(ask):
    code, output, errors = ask("Hi", "--json", "--raw", "--seed", 5, "--max-tokens", 4)
    assert (code, errors) == (0, "")
    document = json.loads(output)
    assert document.pop("timings").keys() == {"first_token", "decode", "n_decoded", "tokens_per_second"}
    assert document == {
        "text": "Hell",
        "reasoning": "",
        "tokens": list(b"Hell"),
        "finish_reason": "length",
        "stop_reason": None,
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "cached_tokens": 0,
            "reasoning_tokens": 0,
            "edit_mode": None,
            "drafted_tokens": 0,
            "accepted_tokens": 0,
            "total_tokens": 6,
        },
        "seed": 5,
        "model": "mock.gguf",
    }


def test_json_names_the_stop(ask):
    document = json.loads(ask("Hi", "--json", "--stop", "xyz", "--stop", " th")[1])
    assert (document["text"], document["finish_reason"], document["stop_reason"]) == ("Hello", "stop", " th")


def test_nothing_of_a_model_reaches_the_terminal_raw(ask):
    evil = "a\x1b]0;t\x07\x9b2J\r\u202e\tb\n"
    code, output, _ = ask("Hi", llm=mock_llm(evil))
    assert (code, output) == (0, "a\\x1b]0;t\\x07\\x9b2J\\r\\u202e\tb\n")
    code, output, _ = ask("Hi", "--json", llm=mock_llm(evil))
    assert json.loads(output)["text"] == evil
    assert output.isascii()


def test_text_of_the_world_stays_as_it_is():
    for text in ("größe\t日本\n", "👩\u200d👩\u200d👧", "می\u200cخواهم", "\ue000", "\U000e0fff"):
        assert printable(text) == text


def test_the_sentence_about_speed():
    assert str(Answer("", 0, 0.0, 0.0, "cancelled")) == "0 tokens, stopped"
    assert str(Answer("a", 1, 0.5, 0.0, "stop")) == "1 token, first token after 0.50 s"
    assert str(Answer("a", 1234, 0.5, 9.87, "length")) == (
        "1,234 tokens, 9.9 tok/s, first token after 0.50 s, cut at the limit"
    )


# -- the prompt --


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_the_prompt_from_stdin_without_its_last_line_break(ask, arguments):
    llm, prompt = recording()
    assert ask(*arguments, "--raw", llm=llm, stdin="Größe\n\n".encode())[:2] == (0, "ok\n")
    assert prompt() == "Größe\n"


def test_raw_continues_the_prompt_as_it_is(ask):
    llm, prompt = recording()
    ask("Once upon", "--raw", llm=llm)
    assert prompt() == "Once upon"


def test_a_model_without_a_template_continues_too(ask):
    llm, prompt = without_template()
    ask("Once upon", llm=llm)
    assert prompt() == "Once upon"


def test_it_is_a_message_where_there_is_a_template(ask):
    llm, prompt = recording()
    ask("Hi <|end|>", "--system", "Be brief.", llm=llm)
    text = "<|start|>system\nBe brief.<|end|><|start|>user\nHi <|end|><|end|><|start|>assistant\n"
    assert prompt() == text
    assert llm.backend.batches[0].count(llm.tokenizer.eos_id) == 2  # the one in the message is text


def test_a_prompt_behind_two_dashes_may_look_like_an_option(ask):
    llm, prompt = recording()
    assert ask("--raw", "--", "--json", llm=llm)[1] == "ok\n"
    assert prompt() == "--json"


# -- options --


def test_options_of_loading(ask):
    ask("Hi", "--cells", 512, "--backend", "reference", "--threads", 2, "--precision", "high", "--kv", "q8")
    machine = {"backend": "reference", "device": "auto", "threads": 2, "cells": 512, "precision": "high"}
    machine["kv"] = "q8"
    assert ask.loaded() == [("mock.gguf", {**machine, "repack": "auto", "vision": None})]


def test_cells_may_be_what_is_free(ask):
    ask("Hi", "--cells", "auto")
    assert ask.loaded()[0][1]["cells"] == "auto"
    ask("Hi")
    assert ask.loaded()[-1][1]["cells"] == 8192


@pytest.mark.parametrize("command", ["run", "chat", "parallel", "bench", "serve"])
def test_cells_that_are_neither_a_number_nor_auto(cli, command):
    code, output, errors = cli(command, "--cells", "many")
    assert (code, output) == (2, "")
    assert "--cells" in errors
    assert "auto" in errors


@pytest.mark.parametrize("command", ["run", "chat", "parallel", "bench", "serve"])
def test_a_precision_that_there_is_not(cli, command):
    code, output, errors = cli(command, "--precision", "exact")
    assert (code, output) == (2, "")
    assert "--precision" in errors
    assert "standard" in errors
    assert "high" in errors


def test_seeds_repeat(ask):
    def dice():
        return mock_llm(lambda seen: [0.0] * 256 + [-100.0] * 2)

    options = ("Hi", "--json", "-n", 12, "--top-k", 0, "--temperature", 1, "--min-p", 0)
    first, again, other = (json.loads(ask(*options, "--seed", seed, llm=dice())[1]) for seed in (1, 1, 2))
    assert first["tokens"] == again["tokens"] != other["tokens"]


def test_a_timeout_ends_it(ask):
    document = json.loads(ask("Hi", "--json", "--timeout", "1e-9")[1])
    assert (document["text"], document["finish_reason"]) == ("", "timeout")


@pytest.mark.parametrize("command", [run, chat], ids=["run", "chat"])
def test_defaults_are_those_of_the_library(command):
    shown = {name: given.default for name, given in inspect.signature(command).parameters.items()}
    sampling, help_of = SamplingParams(), get_type_hints(command, include_extras=True)
    for name in SAMPLING & shown.keys():
        assert shown[name] is None  # the library's, or the model's own
        assert help_of[name].__metadata__[0].show_default.startswith(f"{getattr(sampling, name):g};")
    for name, given in inspect.signature(stretto.load).parameters.items():
        if name in shown and name != "model":
            own = {"precision"}  # which a catalogue entry may recommend
            default = "8192" if name == "cells" else given.default  # as it is typed
            assert shown[name] == (None if name in own else default)


# -- errors --


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Hi", "--temperature", "-1"), "temperature must be a number from 0"),
        (("Hi", "--max-tokens", "-1"), "--max-tokens must be 0 or more, not -1; 0 generates to the end"),
        (("Hi", "--top-p", "0"), "--top-p must be a number above 0 to 1, not 0.0"),
        (("Hi", "--seed", "-1"), "seed"),
        (("Hi", "--timeout", "0"), "timeout"),
        (("Hi", "--stop", ""), "stop"),
        (("Hi", "--temperature", "hot"), "--temperature"),
        (("Hi", "--raw", "--system", "Be brief."), "--system is for a chat; with --raw"),
        (("Hi", "--raw", "--template-arg", "a=1"), "--template-arg is for a chat; with --raw"),
        (("",), "the prompt is empty"),
        (("\n",), "the prompt is empty"),
        (("x" * 2000, "--raw"), "2000 tokens and the context 1024"),
        (("Hi", "there"), "with --model one argument is left, the prompt; 2 were given"),
        (("Hi", "--kv", "q2"), "--kv"),
        (("Hi", "--schema", "{"), "the JSON schema is no JSON"),
        (("Hi", "--schema", "@no.json"), "--schema: no.json cannot be read: No such file or directory"),
        (("Hi", "--regex", "a", "--choice", "b"), "one constraint; --regex and --choice were given"),
        (("Hi", "--repetition-penalty", "0"), "--repetition-penalty must be a number from"),
    ],
)
def test_errors_are_one_line(ask, arguments, message):
    assert message in refused(ask(*arguments))


def test_what_is_no_text_is_refused(ask):
    assert "the text is not UTF-8" in refused(ask(stdin=b"\xff"))
    assert "the text is not UTF-8" in refused(ask("\udcff"))


def test_models_that_are_not_there(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)

    def failing(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["run", "Hi", *arguments])
        return (ended.value.code, *capsys.readouterr())

    assert "no such file" in refused(failing("-m", "no.gguf"))
    assert "did you mean smollm2 " in refused(failing("-m", "smolm2"))
    assert "backend must be one of" in refused(failing("-m", "no.gguf", "--backend", "steam"))


def test_a_model_without_a_template(ask, monkeypatch):
    llm = mock_llm("ok")

    def no_template(messages, **variables):
        raise Unsupported("this model has no chat template")

    monkeypatch.setattr(llm, "chat_prompt", no_template)
    assert "no chat template" in refused(ask("--chat", "Hi", llm=llm))


def test_an_interruption_is_short_and_leaves_what_was_said(ask):
    def interrupted(seen):
        if seen[-1] == ord("b"):
            raise KeyboardInterrupt
        return seen[-1] + 1

    assert ask("`", "--raw", llm=mock_llm(interrupted)) == (130, "ab\n", "\ninterrupted\n")


def test_a_model_that_is_not_here_is_fetched_and_stdout_stays_clean(cli, tiny, store_home):
    code, output, errors = cli("run", "Hi", "--model", tiny.name)
    assert (code, output) == (0, "Hello there\n")
    assert "Licence: MIT" in errors
    assert (store_home / "models" / "tiny").is_dir()
    assert cli("run", "Hi", "--model", tiny.name) == (0, "Hello there\n", "")


# -- the whole --


@pytest.mark.golden
def test_the_real_model(smollm2_path):
    command = [sys.executable, "-c", "from stretto.cli import main; main()", "run", "-m", str(smollm2_path)]
    options = ["--temperature", "0", "--max-tokens", "2", "--raw"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *options], input=b"The capital of France is\n", env=environment, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b" Paris.\n"


@pytest.mark.golden
def test_the_real_model_answers_a_question(smollm2_path, ask_real):
    code, output, errors = ask_real(smollm2_path, "What is 2+2?", "--temperature", "0", "-n", 24)
    assert (code, errors) == (0, "")
    assert re.search(r"\b4\b", output)
    schema = {"type": "object", "properties": {"capital": {"enum": ["Paris", "Rome"]}}}
    schema |= {"required": ["capital"], "additionalProperties": False}
    code, output, _ = ask_real(
        smollm2_path, "The capital of France, as JSON?", "--schema", json.dumps(schema)
    )
    assert (code, list(json.loads(output))) == (0, ["capital"])


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    "prompt",
    ['it\'s "5" $5 $$HOME', "$(shell echo no) $(PROMPT) `echo no` ${HOME}", "-x # \\n; a\nb", "-", ""],
)
def test_make_chat_passes_the_prompt_as_it_is(tmp_path, prompt):
    fake = tmp_path / "bin" / "stretto"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "<%s>" "$@" "$STRETTO_MODEL"\nexec cat\n')
    fake.chmod(0o755)
    installed = tmp_path / ".installed"
    installed.touch()
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")  # of the `make test` that may run this
    done = subprocess.run(
        [
            "make",
            "-s",
            "chat",
            f"--old-file={installed}",
            f"VENV={tmp_path}",
            f"PROMPT={prompt}",
            "MODEL=a b$c",
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in outer},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    asked = "<run><a b$c>" + prompt + "\n"
    assert done.stdout == (asked if prompt else "<chat><a b$c>")


LOOP = "la femme de "


def looping(**options):
    return mock_llm(lambda seen: ord(LOOP[len(seen) % len(LOOP)]), cells=8192, context_length=8192, **options)


@pytest.mark.parametrize("flags", [(), ("--json",), ("--stats",)], ids=str)
def test_an_answer_that_repeats_itself_is_stopped_and_says_so_once(ask, flags):
    code, output, errors = ask("Hi", "--temperature", 0, *flags, llm=looping())
    text = json.loads(output)["text"] if flags == ("--json",) else output.rstrip("\n")
    assert (code, len(text)) == (0, 400)
    assert errors.count("stopped because it repeats itself (--no-repeat-guard") == 1
    if flags == ("--json",):
        assert json.loads(output)["finish_reason"] == "repetition"


@pytest.mark.parametrize(("flags", "n"), [((), 1024), (("-n", 0), 2048), (("-n", 1100), 1100)], ids=str)
def test_an_answer_ends_at_1024_tokens_and_says_how_to_go_on(ask, flags, n):
    llm = mock_llm(lambda seen: 97 + (len(seen) + len(seen) // 26) % 26, cells=2048, context_length=2048)
    code, output, errors = ask("?", "--raw", *flags, "--temperature", 0, llm=llm)
    assert (code, len(output.rstrip("\n"))) == (0, n)
    told = "cut at 1,024 tokens; -n 4096 for more, -n 0 for all that the context holds\n"
    assert errors == (told if n == 1024 else "")


def test_the_guard_can_be_turned_off(ask):
    _, output, errors = ask("Hi", "--no-repeat-guard", "-n", 700, "--temperature", 0, llm=looping())
    assert (len(output.rstrip("\n")), errors) == (700, "")
